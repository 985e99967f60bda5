"""A group's way past its scorers, under the virtual clock."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from small_groups import prompt

from headrace.buffer.group_buffer import BufferLimits, GroupBuffer
from headrace.controller.rollouts import GroupRules, GroupRunner
from headrace.controller.supervision import gather_both, gather_in_order
from headrace.errors import StalledError
from headrace.interfaces import LogprobScorer
from headrace.simulator.scripted_parts import Faults, ScriptedEngine, ScriptedError, ScriptedRewards, Timing
from headrace.simulator.virtual_clock import run_virtually
from headrace.staleness.consumption import ORDERS
from headrace.telemetry.events import Event, Events, GroupReady
from headrace.types import Rollout, RolloutLogprobs, Sampling, ScoredGroup


class SlowScorer:
    """Takes its time for every group, one after the other or side by side."""

    def __init__(self, *seconds: float, value: float, version: int | None = None, fails_at: int | None = None) -> None:
        self._seconds = seconds
        self._value = value
        self._version = version
        self._fails_at = fails_at
        self._calls = 0

    async def score(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> RolloutLogprobs:
        number = self._calls
        self._calls += 1
        await asyncio.sleep(self._seconds[number % len(self._seconds)])
        if number == self._fails_at:
            raise ScriptedError("the teacher broke on purpose")
        logprobs = tuple(np.full(len(rollout.completion_ids), self._value, np.float32) for rollout in rollouts)
        return RolloutLogprobs(of_rollouts=logprobs, seconds=self._seconds[number % len(self._seconds)], version=self._version)

    async def close(self) -> None:
        pass


class Recorder:
    def __init__(self) -> None:
        self.ready_at: dict[int, float] = {}

    def handle(self, time: float, event: Event) -> None:
        if isinstance(event, GroupReady):
            self.ready_at[event.group_id] = time

    def close(self) -> None:
        pass


TIMING = Timing(length_sigma=0.0, seconds_per_token=0.05, reward_seconds=0.0)
"""Every rollout has 20 tokens and takes a second."""


def run_groups(
    num_groups: int, *, teacher: LogprobScorer | None = None, reference: LogprobScorer | None = None, timing: Timing = TIMING
) -> tuple[dict[int, float], list[ScoredGroup]]:
    """When each of so many groups was ready, all admitted at once; and the groups."""
    recorder = Recorder()

    async def scenario() -> list[ScoredGroup]:
        clock: Callable[[], float] = asyncio.get_running_loop().time
        limits = BufferLimits(
            slots=num_groups, groups_per_step=num_groups, max_staleness=0, bounds_every_token=True, max_groups=None, stall_seconds=30.0
        )
        buffer = GroupBuffer(limits, order=ORDERS["deadline"], clock=clock)
        runner = GroupRunner(
            engines=[ScriptedEngine(timing, Faults(), seed=0, max_concurrent_requests=16)],
            rewards=ScriptedRewards(timing, Faults(), seed=0),
            buffer=buffer,
            events=Events(clock, [recorder]),
            sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, max_completion_length=400),
            num_generations=2,
            seed=0,
            rules=GroupRules(min_scored=0, max_failed_groups=9, has_signal=None, max_groups_without_signal=9),
            stall_seconds=30.0,
            teacher=teacher,
            reference=reference,
        )
        groups = [buffer.admit(prompt(row)) for row in range(num_groups)]
        # The trainer waits from the beginning, with the same limit.
        batch, _ = await gather_both(buffer.take_batch(), gather_in_order(runner.run(group) for group in groups))
        return list(batch)

    return recorder.ready_at, run_virtually(scenario())


def test_what_scorers_say_is_in_the_group() -> None:
    _, (group,) = run_groups(1, teacher=SlowScorer(2.0, value=-3.0, version=7), reference=SlowScorer(0.5, value=-4.0))
    assert group.teacher_logprobs is not None
    assert group.reference_logprobs is not None
    assert [each.tolist() for each in group.teacher_logprobs] == [[-3.0] * 20] * 2
    assert [each.tolist() for each in group.reference_logprobs] == [[-4.0] * 20] * 2
    assert (group.teacher_version, group.scoring_seconds) == (7, 2.5)


def test_without_scorers_there_is_nothing_of_them() -> None:
    _, (group,) = run_groups(1)
    assert (group.teacher_logprobs, group.reference_logprobs, group.teacher_version, group.scoring_seconds) == (None, None, None, 0.0)


def test_scorers_and_rewards_work_side_by_side() -> None:
    """A second to generate, then the longest of what scores: not their sum."""
    ready_at, _ = run_groups(1, teacher=SlowScorer(5.0, value=0.0), reference=SlowScorer(3.0, value=0.0))
    assert ready_at[0] == pytest.approx(6.0)


def test_a_slow_teacher_holds_up_its_own_group_alone() -> None:
    ready_at, _ = run_groups(3, teacher=SlowScorer(20.0, 1.0, 2.0, value=0.0))
    assert sorted(ready_at.values()) == pytest.approx([2.0, 3.0, 21.0])


@pytest.mark.parametrize("slow", ["teacher", "reference"])
def test_a_scorer_that_never_answers_ends_the_run_by_its_name(slow: str) -> None:
    with pytest.raises(StalledError, match=rf"waited 30 s \(run.stall_seconds\) for the {slow}'s log-probabilities of group 1 "):
        run_groups(2, **{slow: SlowScorer(1.0, 1e6, value=0.0)})


def test_a_scorer_that_fails_ends_the_run_with_its_own_error() -> None:
    with pytest.raises(ScriptedError, match="the teacher broke"):
        run_groups(2, teacher=SlowScorer(1.0, value=0.0, fails_at=1))
