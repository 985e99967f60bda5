"""One group's way from its slot to the buffer: generate, score, and decide whether it can be trained on."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.buffer.group_buffer import GroupBuffer
from headrace.buffer.signal import limited
from headrace.controller.supervision import gather_both
from headrace.errors import RewardError
from headrace.interfaces import LogprobScorer, RewardService, RolloutEngine
from headrace.telemetry.events import Events, GroupDiscarded, GroupGenerated, GroupReady
from headrace.types import AdmittedGroup, GenerationRequest, Prompt, Rollout, RolloutLogprobs, RolloutReward, Sampling, ScoredGroup

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """Which groups are trained on; the others return their slots."""

    min_scored: int
    """A group with fewer rewards is discarded."""
    max_failed_groups: int
    """So many of these in a row end the run."""
    has_signal: Callable[[ScoredGroup], bool] | None
    """Discard groups of which this is false (DAPO's dynamic sampling); None trains on all."""
    max_groups_without_signal: int
    """So many of these in a row end the run."""


class GroupRunner:
    """Runs groups, each in a task of its own.

    Waits for the engine, then side by side for the reward service and for the scorers that the algorithm needs, each within the stall
    limit. A failure of an engine or a scorer ends the run; a failed reward discards its group only when too few rollouts are left to
    compare.
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
        rules: GroupRules,
        stall_seconds: float,
        teacher: LogprobScorer | None = None,
        reference: LogprobScorer | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            engines: They take turns.
            rewards: Scores rollouts.
            buffer: Where ready groups go.
            events: Told of everything.
            sampling: How tokens are drawn.
            num_generations: Rollouts of each prompt.
            seed: The run's.
            rules: Which groups are trained on.
            stall_seconds: Limit of every wait.
            teacher: Whose log-probabilities are learned from, if any.
            reference: The initial policy, where rewards depend on the distance to it.
        """
        self._engines = engines
        self._rewards = rewards
        self._teacher = teacher
        self._reference = reference
        others = [name for name, scorer in (("teacher", teacher), ("reference", reference)) if scorer is not None]
        self._scores = " and ".join(["rewards", *others])
        self._buffer = buffer
        self._events = events
        self._sampling = sampling
        self._num_generations = num_generations
        self._seed = seed
        self._rules = rules
        self._stall_seconds = stall_seconds
        self._failed_in_a_row = 0
        self._without_signal_in_a_row = 0

    async def run(self, group: AdmittedGroup) -> None:
        """Bring one group to the buffer, or discard it."""
        rollouts = await self._generate(group)
        self._events.emit(GroupGenerated(group_id=group.group_id, num_tokens=sum(len(rollout.completion_ids) for rollout in rollouts)))
        scored = await self._score(group, rollouts)
        if sum(reward.total is not None for reward in scored.rewards) < self._rules.min_scored:
            self._discard_failed(scored)
        elif self._rules.has_signal is not None and not self._rules.has_signal(scored):
            self._discard_without_signal(scored)
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
        return await self._limited(engine.generate(request), "the rollouts", group)

    async def _score(self, group: AdmittedGroup, rollouts: Sequence[Rollout]) -> ScoredGroup:
        self._buffer.advance(group.group_id, waits_for=self._scores)
        rewards, (teacher, reference) = await gather_both(
            self._limited(self._rewards.score(group.prompt, rollouts), "the rewards", group),
            gather_both(
                self._ask(self._teacher, "the teacher's log-probabilities", group, rollouts),
                self._ask(self._reference, "the reference's log-probabilities", group, rollouts),
            ),
        )
        return ScoredGroup(
            group=group,
            rollouts=tuple(rollouts),
            rewards=tuple(rewards),
            teacher_logprobs=None if teacher is None else teacher.of_rollouts,
            reference_logprobs=None if reference is None else reference.of_rollouts,
            teacher_version=None if teacher is None else teacher.version,
            scoring_seconds=sum(each.seconds for each in (teacher, reference) if each is not None),
        )

    async def _ask(
        self, scorer: LogprobScorer | None, what: str, group: AdmittedGroup, rollouts: Sequence[Rollout]
    ) -> RolloutLogprobs | None:
        if scorer is None:
            return None
        return await self._limited(scorer.score(group.prompt.token_ids, rollouts), what, group)

    async def _limited(self, work: Awaitable[T], what: str, group: AdmittedGroup) -> T:
        return await limited(
            work,
            seconds=self._stall_seconds,
            what=lambda: f"{what} of group {group.group_id} (epoch {group.prompt.epoch}, row {group.prompt.row})",
        )

    def _finish(self, scored: ScoredGroup) -> None:
        self._failed_in_a_row = 0
        self._without_signal_in_a_row = 0
        totals = [reward.total for reward in scored.rewards if reward.total is not None]
        self._buffer.finish(scored)
        self._events.emit(
            GroupReady(
                group_id=scored.group.group_id,
                mean_reward=sum(totals) / len(totals) if totals else None,
                num_failed=sum(reward.error is not None for reward in scored.rewards),
                error=_first_error(scored.rewards),
            )
        )

    def _discard(self, scored: ScoredGroup, reason: str, detail: str | None) -> None:
        self._buffer.discard(scored.group.group_id, reason=reason, num_tokens=scored.num_tokens)
        self._events.emit(GroupDiscarded(group_id=scored.group.group_id, reason=reason, detail=detail))

    def _discard_without_signal(self, scored: ScoredGroup) -> None:
        self._discard(scored, "no_signal", None)
        self._without_signal_in_a_row += 1
        if self._without_signal_in_a_row >= self._rules.max_groups_without_signal:
            raise RewardError(
                f"{self._without_signal_in_a_row} groups in a row (algorithm.max_groups_without_signal) had rewards that tell none of "
                f"their rollouts apart, the last one {[reward.total for reward in scored.rewards]} with {_num_cut_off(scored)} completions "
                "cut off at sampling.max_completion_length; dynamic sampling finds nothing to learn from: take easier or harder prompts, "
                "more rollouts a prompt (algorithm.num_generations), a reward with more values, or longer completions"
            )

    def _discard_failed(self, scored: ScoredGroup) -> None:
        error = _first_error(scored.rewards)
        self._discard(scored, "no_reward" if error is None else "reward_failed", error)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._rules.max_failed_groups:
            raise RewardError(
                f"{self._failed_in_a_row} groups in a row (rewards.max_failed_groups) had fewer than {self._rules.min_scored} scored "
                "rollouts, so nothing can be learned from them; the last one's reason: "
                f"{error or 'no reward function applied (all returned None)'}"
            )


def request_seed(seed: int, purpose: str, prompt: Prompt) -> int:
    """A 63-bit seed for one prompt's rollouts: the same in every run with the same `run.seed`, whatever the order."""
    name = f"{seed}/{purpose}/{prompt.epoch}/{prompt.row}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1


def _num_cut_off(scored: ScoredGroup) -> int:
    return sum(rollout.finish_reason == "length" for rollout in scored.rollouts)


def _first_error(rewards: Sequence[RolloutReward]) -> str | None:
    return next((reward.error for reward in rewards if reward.error is not None), None)
