"""A trial of the reward functions before any model is loaded."""

from collections.abc import Sequence

import numpy as np

from headrace.errors import RewardError
from headrace.interfaces import RewardService
from headrace.types import Prompt, Rollout

PLACEHOLDER_COMPLETIONS = ("", "0")


async def rehearse(service: RewardService, prompts: Sequence[Prompt]) -> None:
    """Score the placeholder completions of the first prompt, so that a broken function shows now and not after the first rollouts.

    Raises:
        RewardError: A function cannot be loaded, returns the wrong number of values, or fails (raises, hangs, ends its
            process, returns no finite number) on every placeholder.
    """
    prompt = prompts[0]
    rewards = await service.score(prompt, [_placeholder(text) for text in PLACEHOLDER_COMPLETIONS])
    errors = [reward.error for reward in rewards if reward.error is not None]
    if len(errors) == len(rewards):
        raise RewardError(
            f"{errors[0]}. This happened in a trial before training, on prompt {prompt.row} with the completions "
            f"{PLACEHOLDER_COMPLETIONS}; a reward function must give a number, or None where it does not apply, whatever the completion"
        )


def _placeholder(text: str) -> Rollout:
    return Rollout(
        completion_ids=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        versions=np.zeros(1, np.int32),
        finish_reason="stop",
        text=text,
    )
