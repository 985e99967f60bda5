"""The held-out prompts, answered by the current weights."""

from collections.abc import Sequence

from headrace.buffer.signal import limited
from headrace.controller.rollouts import request_seed
from headrace.controller.supervision import gather_in_order
from headrace.interfaces import Clock, RewardService, RolloutEngine
from headrace.telemetry.events import EvaluationFinished, Events
from headrace.types import GenerationRequest, Prompt, Rollout, RolloutReward, Sampling


class Evaluator:
    """Evaluates when the schedule says so: before training, every few steps, and after the last one, each once."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        engines: Sequence[RolloutEngine],
        rewards: RewardService,
        events: Events,
        clock: Clock,
        sampling: Sampling,
        num_rollouts: int,
        every_steps: int,
        seed: int,
        stall_seconds: float,
    ) -> None:
        self._prompts = prompts
        self._engines = engines
        self._rewards = rewards
        self._events = events
        self._clock = clock
        self._sampling = sampling
        self._num_rollouts = num_rollouts
        self._every_steps = every_steps
        self._seed = seed
        self._stall_seconds = stall_seconds

    async def run_if_due(self, version: int) -> None:
        """Evaluate during training; the last step's evaluation is `run`'s."""
        if self._every_steps and version % self._every_steps == 0:
            await self.run(version)

    async def run(self, version: int) -> EvaluationFinished | None:
        """Answer and score every held-out prompt once; None when none is held out."""
        if not self._prompts:
            return None
        start = self._clock()
        answers = await gather_in_order(self._answer(index, prompt) for index, prompt in enumerate(self._prompts))
        metrics = evaluation_metrics([rewards for _, rewards in answers], [rollouts for rollouts, _ in answers])
        event = EvaluationFinished(
            version=version,
            metrics=metrics,
            answers=[
                (prompt, rollout, reward)
                for prompt, (rollouts, rewards) in zip(self._prompts, answers, strict=True)
                for rollout, reward in zip(rollouts, rewards, strict=True)
            ],
            seconds=self._clock() - start,
        )
        self._events.emit(event)
        return event

    async def _answer(self, index: int, prompt: Prompt) -> tuple[Sequence[Rollout], Sequence[RolloutReward]]:
        request = GenerationRequest(
            prompt_ids=prompt.token_ids,
            num_rollouts=self._num_rollouts,
            sampling=self._sampling,
            seed=request_seed(self._seed, "evaluate", prompt),
        )
        engine = self._engines[index % len(self._engines)]
        what = f"held-out prompt {prompt.row}"
        rollouts = await limited(engine.generate(request), seconds=self._stall_seconds, what=lambda: f"the rollouts of {what}")
        rewards = await limited(self._rewards.score(prompt, rollouts), seconds=self._stall_seconds, what=lambda: f"the rewards of {what}")
        return rollouts, rewards


def evaluation_metrics(rewards: Sequence[Sequence[RolloutReward]], rollouts: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """Means over the held-out prompts.

    Args:
        rewards: One list a prompt, one reward a rollout. A rollout without a reward counts as 0: it is no right answer.
        rollouts: The rollouts, likewise.

    Returns:
        `eval/reward`, `eval/mean_length` (tokens), `eval/clipped_ratio`, `eval/failed`, and with k > 1 rollouts a prompt
        `eval/pass@k`: the share of prompts whose best rollout has reward at least 1. Without reward functions, the lengths alone.
    """
    flat_rollouts = [rollout for siblings in rollouts for rollout in siblings]
    lengths = {
        "eval/mean_length": sum(len(rollout.completion_ids) for rollout in flat_rollouts) / len(flat_rollouts),
        "eval/clipped_ratio": sum(rollout.finish_reason == "length" for rollout in flat_rollouts) / len(flat_rollouts),
    }
    return (_reward_metrics(rewards) if any(reward.by_function for siblings in rewards for reward in siblings) else {}) | lengths


def _reward_metrics(rewards: Sequence[Sequence[RolloutReward]]) -> dict[str, float]:
    totals = [[0.0 if reward.total is None else reward.total for reward in siblings] for siblings in rewards]
    flat = [total for siblings in totals for total in siblings]
    metrics = {
        "eval/reward": sum(flat) / len(flat),
        "eval/failed": sum(reward.error is not None for siblings in rewards for reward in siblings) / len(flat),
    }
    num_rollouts = len(totals[0])
    if num_rollouts > 1:
        metrics[f"eval/pass@{num_rollouts}"] = sum(max(siblings) >= 1 for siblings in totals) / len(totals)
    return metrics
