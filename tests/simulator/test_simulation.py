"""The rules that must hold, as properties of the real controller under a virtual clock."""

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import RewardError, StalledError
from headrace.simulator.scripted_parts import Faults, ScriptedError, Timing
from headrace.simulator.simulation import Scenario, simulate
from headrace.telemetry.event_log import EventLog
from headrace.telemetry.events import CheckpointSaved, Event, GroupAdmitted, GroupDiscarded, GroupReady, RunFinished, StepFinished

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where thousands of runs put their checkpoints: flushing them to a disk would be all that the tests do."""

MANY = settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))


class KilledError(Exception):
    """Stands for a kill: nothing of the run survives it but its files."""


class Recorder:
    """Keeps every event; raises at event number `kill_at`, as a kill would end the run."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.events: list[Event] = []
        self._kill_at = kill_at

    def handle(self, time: float, event: Event) -> None:
        self.events.append(event)
        if len(self.events) == self._kill_at:
            raise KilledError

    def close(self) -> None:
        pass

    @property
    def steps(self) -> list[StepFinished]:
        return [event for event in self.events if isinstance(event, StepFinished)]


def run(scenario: Scenario, recorder: Recorder | None = None) -> Recorder:
    recorder = recorder or Recorder()
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        simulate(scenario, Path(folder), [recorder])
    return recorder


def trained_rows(steps: list[StepFinished]) -> list[tuple[int, int]]:
    return [(group.scored.group.prompt.epoch, group.scored.group.prompt.row) for step in steps for group in step.groups]


timings = st.builds(
    Timing,
    median_length=st.floats(2, 60),
    length_sigma=st.floats(0, 1.6),
    reward_seconds=st.floats(0, 2),
    seconds_per_trained_token=st.floats(0, 0.01),
    step_seconds=st.floats(0, 1),
    publish_seconds=st.floats(0, 0.5),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    groups_per_step = draw(st.integers(1, 5))
    max_staleness = draw(st.integers(0, 4))
    return Scenario(
        groups_per_step=groups_per_step,
        num_generations=draw(st.integers(2, 4)),
        max_staleness=max_staleness,
        slots=draw(st.integers(groups_per_step, (max_staleness + 1) * groups_per_step)),
        streams=draw(st.booleans()),
        num_prompts=draw(st.integers(1, 30)),
        last_version=draw(st.integers(1, 8)),
        num_engines=draw(st.integers(1, 3)),
        max_concurrent_requests=draw(st.integers(1, 12)),
        timing=draw(timings),
        faults=Faults(unscored=draw(st.sampled_from([0.0, 0.0, 0.3]))),
        max_groups_without_signal=draw(st.sampled_from([None, 1_000_000])),
        seed=draw(st.integers(0, 2**20)),
    )


@MANY
@given(scenarios())
def test_no_token_is_ever_too_old_and_no_group_is_lost(scenario: Scenario) -> None:
    recorder = run(scenario)
    assert len(recorder.steps) == scenario.last_version
    for step in recorder.steps:
        assert len(step.groups) == scenario.groups_per_step
        assert step.ledger.balances
        assert step.ledger.live <= scenario.slots
        for group in step.groups:
            for rollout in group.scored.rollouts:
                assert step.trained_at - int(rollout.versions.min()) <= scenario.max_staleness
                assert (rollout.versions[1:] >= rollout.versions[:-1]).all()
    finished = recorder.events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.ledger.live == 0
    assert finished.ledger.trained_tokens == sum(group.scored.num_tokens for step in recorder.steps for group in step.groups)


@MANY
@given(scenarios())
def test_the_number_admitted_never_exceeds_areals_bound(scenario: Scenario) -> None:
    version = admitted = 0
    for event in run(scenario).events:
        if isinstance(event, StepFinished):
            version = event.report.version
        admitted += isinstance(event, GroupAdmitted)
        admitted -= isinstance(event, GroupDiscarded)
        assert admitted <= (version + 1 + scenario.max_staleness + 1) * scenario.groups_per_step


@MANY
@given(scenarios(), st.integers(1, 3))
def test_every_prompt_is_trained_on_once_an_epoch_unless_discarded(scenario: Scenario, num_epochs: int) -> None:
    scenario = dataclasses.replace(scenario, last_version=None, num_epochs=num_epochs)
    recorder = Recorder()
    try:
        run(scenario, recorder)
    except RewardError:
        assert not recorder.steps  # Of the few prompts each was discarded.
    names = {event.group_id: (event.epoch, event.row) for event in recorder.events if isinstance(event, GroupAdmitted)}
    discarded = [names[event.group_id] for event in recorder.events if isinstance(event, GroupDiscarded)]
    every = Counter((epoch, row) for epoch in range(num_epochs) for row in range(scenario.num_prompts))
    assert Counter(trained_rows(recorder.steps)) + Counter(discarded) == every
    assert all(len(step.groups) == scenario.groups_per_step for step in recorder.steps[:-1])


@settings(MANY, max_examples=120)
@given(scenarios(), st.integers(1, 5), st.data())
def test_a_run_that_is_killed_and_resumed_has_the_same_books(scenario: Scenario, checkpoint_every: int, data: st.DataObject) -> None:
    scenario = dataclasses.replace(scenario, last_version=None, num_epochs=2, checkpoint_every=checkpoint_every)
    kept: list[StepFinished] = []
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        for attempt in range(20):
            recorder = Recorder(kill_at=data.draw(st.integers(1, 150)) if attempt < 4 else None)
            try:
                simulate(scenario, Path(folder), [recorder], resume=attempt > 0)
            except KilledError:
                saved = [event.version for event in recorder.events if isinstance(event, CheckpointSaved)]
                kept += [step for step in recorder.steps if saved and step.report.version <= saved[-1]]
            except RewardError:
                assert not kept + recorder.steps  # Of the few prompts each was discarded.
                return
            else:
                kept += recorder.steps
                break
    every = Counter((epoch, row) for epoch in range(2) for row in range(scenario.num_prompts))
    trained = Counter(trained_rows(kept))
    assert trained <= every
    assert [step.report.version for step in kept] == list(range(1, len(kept) + 1))
    finished = recorder.events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.ledger.balances
    num_discarded = sum(finished.ledger.discarded.values())
    assert (finished.ledger.trained, finished.ledger.trained + num_discarded) == (trained.total(), every.total())
    assert finished.ledger.live == 0
    if scenario.faults == Faults() and scenario.max_groups_without_signal is None:
        assert num_discarded == 0


@settings(max_examples=25, deadline=None)
@given(scenarios())
def test_the_same_seed_gives_the_same_event_log_byte_for_byte(scenario: Scenario) -> None:
    scenario = dataclasses.replace(scenario, num_held_out=3)
    logs: list[bytes] = []
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        for name in ("first", "second"):
            path = Path(folder, f"{name}.jsonl")
            simulate(scenario, Path(folder, "run"), [EventLog(path)])
            logs.append(path.read_bytes())
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") > scenario.groups_per_step


def test_another_seed_gives_another_event_log(tmp_path: Path) -> None:
    for seed in (1, 2):
        simulate(Scenario(seed=seed), tmp_path / "run", [EventLog(tmp_path / f"{seed}.jsonl")])
    assert (tmp_path / "1.jsonl").read_bytes() != (tmp_path / "2.jsonl").read_bytes()


def test_completion_order_lets_a_straggler_grow_too_old_and_deadline_order_does_not() -> None:
    heavy_tail = Timing(length_sigma=1.5, max_length=2000)
    worst = {}
    for order in ("completion", "deadline"):
        recorder = run(Scenario(order=order, last_version=40, timing=heavy_tail, seed=3))
        worst[order] = max(step.trained_at - group.scored.oldest_version for step in recorder.steps for group in step.groups)
    assert worst["completion"] > 1
    assert worst["deadline"] == 1


def test_periodic_overlaps_and_sync_does_not() -> None:
    """Both are on-policy; streaming hides training behind generation."""
    seconds = {}
    for streams in (False, True):
        recorder = run(Scenario(max_staleness=0, streams=streams, seed=5))
        assert all(step.trained_at == group.scored.oldest_version for step in recorder.steps for group in step.groups)
        seconds[streams] = sum(step.timings.total for step in recorder.steps)
    assert seconds[True] < 0.95 * seconds[False]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(engine_dies_at=9), "the engine died at request 9"),
        (Faults(reward_service_dies_at=9), "the reward service died at call 9"),
        (Faults(trainer_dies_at=3), "the trainer died at version 3"),
    ],
)
def test_a_dead_part_ends_the_run_with_its_own_error(faults: Faults, message: str) -> None:
    with pytest.raises(ScriptedError, match=message):
        run(Scenario(faults=faults))


def test_a_lost_request_is_reported_with_its_group() -> None:
    with pytest.raises(StalledError, match=r"waited 900 s \(run.stall_seconds\) for the rollouts of group 6 \(epoch 0, row 6\)"):
        run(Scenario(faults=Faults(request_lost=6)))


def test_a_run_without_any_reward_ends_with_the_rewards_own_error() -> None:
    with pytest.raises(RewardError, match=r"8 groups in a row .* coin: failed on purpose"):
        run(Scenario(faults=Faults(unscored=1.0), max_failed_groups=8))


def test_a_run_whose_prompts_end_without_a_step_says_why_and_saves_nothing() -> None:
    recorder = Recorder()
    with pytest.raises(RewardError, match=r"without a training step, because all 12 groups were discarded: 12 had too few scored rollouts"):
        run(Scenario(faults=Faults(unscored=1.0), num_prompts=6, num_epochs=2, last_version=None), recorder)
    assert not any(isinstance(event, CheckpointSaved | RunFinished) for event in recorder.events)


PAIRS = Scenario(num_generations=2, max_groups_without_signal=1_000_000, last_version=20)
"""Half of the groups of two coins have equal rewards."""


def test_dynamic_sampling_replaces_groups_without_signal() -> None:
    recorder = run(PAIRS)
    assert len(recorder.steps) == 20
    discarded = [event for event in recorder.events if isinstance(event, GroupDiscarded)]
    assert len(discarded) > 20
    assert {event.reason for event in discarded} == {"no_signal"}
    for step in recorder.steps:
        assert len(step.groups) == PAIRS.groups_per_step
        assert all(len({reward.total for reward in group.scored.rewards}) == 2 for group in step.groups)
        assert step.ledger.balances
    assert recorder.steps[-1].ledger.discarded == {"no_signal": len(discarded)}


def test_without_dynamic_sampling_they_are_trained_on() -> None:
    recorder = run(dataclasses.replace(PAIRS, max_groups_without_signal=None))
    assert not any(isinstance(event, GroupDiscarded) for event in recorder.events)
    assert any(len({reward.total for reward in group.scored.rewards}) == 1 for step in recorder.steps for group in step.groups)


def test_a_run_that_finds_no_signal_for_long_ends_with_a_message() -> None:
    recorder = Recorder()
    scenario = dataclasses.replace(PAIRS, max_groups_without_signal=6, last_version=None, num_epochs=None)
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder,
        pytest.raises(
            RewardError,
            match=r"6 groups in a row \(algorithm.max_groups_without_signal\) had rewards that tell none of their rollouts apart",
        ),
    ):
        simulate(scenario, Path(folder), [recorder])
    outcomes = [isinstance(event, GroupDiscarded) for event in recorder.events if isinstance(event, GroupDiscarded | GroupReady)]
    assert outcomes[-6:] == [True] * 6
    longest_before = max(len(run) for run in "".join("x" if outcome else " " for outcome in outcomes[:-1]).split())
    assert longest_before == 5
