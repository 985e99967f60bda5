"""A frozen model in this process as a scorer: a teacher, or the policy that a run began with."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from headrace.training.computing_thread import ComputingThread
from headrace.training.frozen_policy import FrozenPolicy
from headrace.types import Rollout, RolloutLogprobs


class LocalScorer:
    """Implements `interfaces.LogprobScorer`. Groups are computed one after the other, in the order they came.

    Args:
        name: Of the thread.
        policy: What computes.
        threads: Context of every computation; see `ComputingThread`.
    """

    def __init__(self, name: str, policy: FrozenPolicy, *, threads: AbstractContextManager[Callable[[], int]]) -> None:
        self._policy = policy
        self._thread = ComputingThread(name, [policy.model], threads=threads)

    async def score(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> RolloutLogprobs:
        """The log-probabilities of all sampled tokens of a group, at the temperature that they were sampled with."""
        return await self._thread.compute(lambda: timed_logprobs(self._policy, prompt_ids, rollouts))

    async def close(self) -> None:
        """Stop after the group under way."""
        await self._thread.close()


def timed_logprobs(
    policy: FrozenPolicy, prompt_ids: Sequence[int], rollouts: Sequence[Rollout], *, version: int | None = None
) -> RolloutLogprobs:
    """What a policy says of a group, and how long it took."""
    start = time.perf_counter()
    of_rollouts = policy.logprobs(prompt_ids, rollouts)
    return RolloutLogprobs(of_rollouts=of_rollouts, seconds=time.perf_counter() - start, version=version)
