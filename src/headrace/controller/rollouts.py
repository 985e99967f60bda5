"""One group's way from its slot to the buffer: generate, score, and decide whether it can be trained on."""

import hashlib
from collections.abc import Sequence

from headrace.buffer.group_buffer import GroupBuffer
from headrace.buffer.signal import limited
from headrace.errors import RewardError
from headrace.interfaces import RewardService, RolloutEngine
from headrace.telemetry.events import Events, GroupDiscarded, GroupGenerated, GroupReady
from headrace.types import AdmittedGroup, GenerationRequest, Prompt, Rollout, RolloutReward, Sampling, ScoredGroup


class GroupRunner:
    """Runs groups, each in a task of its own.

    Waits for the engine and for the reward service, each within the stall limit. An engine's failure ends the run; a
    failed reward discards its group only when fewer than two rollouts are left to compare.
    """

    def __init__(
        self,
        *,
        engines: Sequence[RolloutEngine],
        rewards: RewardService,
        buffer: GroupBuffer,
        events: Events,
        sampling: Sampling,
        num_generations: int,
        seed: int,
        max_failed_groups: int,
        stall_seconds: float,
    ) -> None:
        self._engines = engines
        self._rewards = rewards
        self._buffer = buffer
        self._events = events
        self._sampling = sampling
        self._num_generations = num_generations
        self._seed = seed
        self._max_failed_groups = max_failed_groups
        self._stall_seconds = stall_seconds
        self._failed_in_a_row = 0

    async def run(self, group: AdmittedGroup) -> None:
        """Bring one group to the buffer, or discard it."""
        rollouts = await self._generate(group)
        self._events.emit(GroupGenerated(group_id=group.group_id, num_tokens=sum(len(rollout.completion_ids) for rollout in rollouts)))
        rewards = await limited(
            self._rewards.score(group.prompt, rollouts),
            seconds=self._stall_seconds,
            what=lambda: f"the rewards of group {group.group_id} (epoch {group.prompt.epoch}, row {group.prompt.row})",
        )
        scored = ScoredGroup(group=group, rollouts=tuple(rollouts), rewards=tuple(rewards))
        if sum(reward.total is not None for reward in rewards) < 2:
            self._discard(scored)
        else:
            self._finish(scored)

    async def _generate(self, group: AdmittedGroup) -> Sequence[Rollout]:
        engine = self._engines[group.group_id % len(self._engines)]
        request = GenerationRequest(
            prompt_ids=group.prompt.token_ids,
            num_rollouts=self._num_generations,
            sampling=self._sampling,
            seed=request_seed(self._seed, "train", group.prompt),
        )
        return await limited(
            engine.generate(request),
            seconds=self._stall_seconds,
            what=lambda: f"the rollouts of group {group.group_id} (epoch {group.prompt.epoch}, row {group.prompt.row})",
        )

    def _finish(self, scored: ScoredGroup) -> None:
        self._failed_in_a_row = 0
        totals = [reward.total for reward in scored.rewards if reward.total is not None]
        self._buffer.finish(scored)
        self._events.emit(
            GroupReady(
                group_id=scored.group.group_id,
                mean_reward=sum(totals) / len(totals),
                num_failed=sum(reward.error is not None for reward in scored.rewards),
                error=_first_error(scored.rewards),
            )
        )

    def _discard(self, scored: ScoredGroup) -> None:
        error = _first_error(scored.rewards)
        reason = "no_reward" if error is None else "reward_failed"
        self._buffer.discard(scored.group.group_id, reason=reason, num_tokens=scored.num_tokens)
        self._events.emit(GroupDiscarded(group_id=scored.group.group_id, reason=reason, detail=error))
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._max_failed_groups:
            raise RewardError(
                f"{self._failed_in_a_row} groups in a row (rewards.max_failed_groups) had fewer than two scored rollouts, so nothing "
                f"can be learned from them; the last one's reason: {error or 'no reward function applied (all returned None)'}"
            )


def request_seed(seed: int, purpose: str, prompt: Prompt) -> int:
    """A 63-bit seed for one prompt's rollouts: the same in every run with the same `run.seed`, whatever the order."""
    name = f"{seed}/{purpose}/{prompt.epoch}/{prompt.row}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1


def _first_error(rewards: Sequence[RolloutReward]) -> str | None:
    return next((reward.error for reward in rewards if reward.error is not None), None)
