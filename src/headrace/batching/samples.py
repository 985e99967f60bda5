"""From scored groups to trainable samples: who takes part, with which advantage."""

from collections.abc import Callable, Sequence

from headrace.telemetry.events import TrainedGroup
from headrace.types import Rollout, Sample, ScoredGroup, SharedPromptRow

AdvantageFunction = Callable[[Sequence[Sequence[float | None]]], Sequence[Sequence[float | None]]]
"""Groups of rewards in, groups of advantages out, in order; None stays None. See `headrace.algorithms.advantages`."""


def with_advantages(
    groups: Sequence[ScoredGroup], *, advantages_of: AdvantageFunction, mask_truncated_completions: bool
) -> list[TrainedGroup]:
    """Give every rollout its advantage, in the order of the groups.

    Args:
        groups: The batch, or one group of it when the advantages of groups do not depend on one another.
        advantages_of: What turns rewards into advantages.
        mask_truncated_completions: Leave rollouts that hit the length limit out, as if they had no reward.
    """
    rewards = [trainable_rewards(group, mask_truncated_completions=mask_truncated_completions) for group in groups]
    return [TrainedGroup(scored=group, advantages=advantages) for group, advantages in zip(groups, advantages_of(rewards), strict=True)]


def trainable_rewards(group: ScoredGroup, *, mask_truncated_completions: bool) -> list[float | None]:
    """The rewards that take part in training; None for rollouts without one, and for truncated ones if these are masked.

    Whether a completion is truncated is what the engine said (`finish_reason`), whatever its length or last token.
    """
    return [
        None if mask_truncated_completions and rollout.finish_reason == "length" else reward.total
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
    ]


def row_of(group: TrainedGroup) -> SharedPromptRow | None:
    """The group's samples behind their prompt, without the rollouts whose advantage is None; None when no rollout is left."""
    admitted = group.scored.group
    samples = tuple(
        _sample(rollout, advantage)
        for rollout, advantage in zip(group.scored.rollouts, group.advantages, strict=True)
        if advantage is not None
    )
    return SharedPromptRow(group_id=admitted.group_id, prompt_ids=admitted.prompt.token_ids, samples=samples) if samples else None


def _sample(rollout: Rollout, advantage: float) -> Sample:
    return Sample(completion_ids=rollout.completion_ids, logprobs=rollout.logprobs, versions=rollout.versions, advantage=advantage)
