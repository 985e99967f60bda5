from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry.small_events import engine, evaluation, ledger, step_finished, timings

from headrace.simulator.simulation import Scenario, simulate
from headrace.telemetry.events import (
    CheckpointSaved,
    Event,
    GroupAdmitted,
    GroupDiscarded,
    GroupGenerated,
    GroupReady,
    MicroBatchTrained,
    OptimizerStepFinished,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsPublished,
)
from headrace.telemetry.metrics import token_staleness
from headrace.telemetry.trace import TraceLog
from headrace.telemetry.trace_file import read_trace

START = RunStarted(version=0, last_version=2, slots=4, max_staleness=1, prompts_per_step=2)
END = RunFinished(version=2, interrupted=False, ledger=ledger())


def admitted(group_id: int) -> GroupAdmitted:
    return GroupAdmitted(group_id=group_id, epoch=0, row=group_id, version=0, deadline=1)


def generated(group_id: int) -> GroupGenerated:
    return GroupGenerated(group_id=group_id, num_tokens=7)


def ready(group_id: int) -> GroupReady:
    return GroupReady(group_id=group_id, mean_reward=0.5, num_failed=0, error=None)


def published(version: int, seconds: float, loading_seconds: float) -> WeightsPublished:
    return WeightsPublished(version=version, seconds=seconds, loading_seconds=loading_seconds)


def trace_of(path: Path, *events: tuple[float, Event], version: int = 0) -> list[dict]:
    log = TraceLog(path, version=version)
    for time, event in events:
        log.handle(time, event)
    log.close()
    return read_trace(path)


def slices_of(trace: list[dict]) -> dict[str, list[tuple[str, float, float]]]:
    """By track: (name, start, end) in seconds, in the order in which they end."""
    tracks = {event["tid"]: event["args"]["name"] for event in trace if event.get("name") == "thread_name"}
    slices: dict[str, list[tuple[str, float, float]]] = {name: [] for name in tracks.values()}
    begun: dict[int, dict] = {}
    for event in trace:
        match event["ph"]:
            case "X":
                slices[tracks[event["tid"]]].append((event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
            case "B":
                assert event["tid"] not in begun, "two groups in one lane"
                begun[event["tid"]] = event
            case "E":
                begin = begun.pop(event["tid"])
                slices[tracks[event["tid"]]].append((begin["name"], begin["ts"] / 1e6, event["ts"] / 1e6))
    return slices


def counts_of(trace: list[dict], counter: str) -> list[tuple[float, dict]]:
    return [(event["ts"] / 1e6, event["args"]) for event in trace if event["ph"] == "C" and event["name"] == counter]


def test_groups_that_overlap_take_a_lane_each_and_leave_it_to_the_next(tmp_path: Path) -> None:
    events = [(0, admitted(0)), (1, admitted(1)), (2, generated(0)), (3, admitted(2)), (4, generated(1)), (5, ready(1)), (6, ready(0))]
    slices = slices_of(trace_of(tmp_path / "trace.json", (0, START), *events, (7, generated(2)), (8, ready(2))))
    assert slices["rollouts 1"] == [("group 0", 0, 2), ("group 2", 3, 7)]
    assert slices["rollouts 2"] == [("group 1", 1, 4)]
    assert slices["rewards 1"] == [("group 0", 2, 6), ("group 2", 7, 8)]
    assert slices["rewards 2"] == [("group 1", 4, 5)]


def test_a_group_carries_its_facts(tmp_path: Path) -> None:
    failed = GroupDiscarded(group_id=0, reason="reward_failed", detail="too late")
    trace = trace_of(tmp_path / "trace.json", (0, START), (1, admitted(0)), (2, generated(0)), (3, failed))
    args = [event["args"] for event in trace if event["ph"] in ("B", "E")]
    assert args[0] == {"group_id": 0, "epoch": 0, "row": 0, "version": 0, "deadline": 1}
    assert args[1] == args[2] == {"group_id": 0, "num_tokens": 7}
    assert args[3] == {"group_id": 0, "reason": "reward_failed", "detail": "too late"}


def test_the_trainer_waits_computes_and_steps(tmp_path: Path) -> None:
    first = MicroBatchTrained(version=3, group_ids=[1, 2], num_tokens=50, staleness=1, waited=2.0, seconds=1.0)
    second = MicroBatchTrained(version=3, group_ids=[4], num_tokens=20, staleness=0, waited=0.0, seconds=0.5)
    step = OptimizerStepFinished(version=4, waited=0.0, seconds=0.25)
    nothing_to_train_on = OptimizerStepFinished(version=5, waited=2.0, seconds=0.25)
    trace = trace_of(tmp_path / "trace.json", (0, START), (3, first), (3.5, second), (3.75, step), (6.0, nothing_to_train_on))
    assert slices_of(trace)["trainer"] == [
        ("wait for groups", 0, 2),
        ("micro-batch", 2, 3),
        ("micro-batch", 3, 3.5),
        ("optimizer step", 3.5, 3.75),
        ("wait for groups", 3.75, 5.75),
        ("optimizer step", 5.75, 6.0),
    ]
    args = next(event["args"] for event in trace if event.get("name") == "micro-batch")
    assert (args["version"], args["group_ids"], args["num_tokens"], args["staleness"]) == (3, [1, 2], 50, 1)


def test_work_beside_the_trainer_has_tracks_of_its_own(tmp_path: Path) -> None:
    saved = CheckpointSaved(version=2, folder=tmp_path / "checkpoint-2", seconds=0.5)
    slices = slices_of(trace_of(tmp_path / "trace.json", (4, published(2, 1.0, 0.5)), (6, evaluation(2, 0.5, seconds=2.0)), (7, saved)))
    assert slices["publish"] == [("publish 2", 3, 4)]
    assert slices["evaluation"] == [("evaluate 2", 4, 6)]
    assert slices["checkpoint"] == [("checkpoint-2", 6.5, 7)]


def test_the_engine_has_no_rollouts_when_it_neither_generates_nor_loads_nor_evaluates(tmp_path: Path) -> None:
    events = [(0, START), (2, published(0, 1.5, 0.5)), (3, admitted(0)), (4, admitted(1)), (5, generated(0)), (6, generated(1))]
    more = [(9, published(1, 2.0, 1.0)), (9.5, admitted(2)), (10, published(2, 0.5, 0.25)), (11, generated(2))]
    slices = slices_of(trace_of(tmp_path / "trace.json", *events, *more, (15, evaluation(2, 0.5, seconds=3.0)), (16, END)))
    assert slices["engine"] == [
        ("no rollouts", 0, 1.5),
        ("load weights", 1.5, 2),
        ("no rollouts", 2, 3),
        ("no rollouts", 6, 8),
        ("load weights", 8, 9),
        ("no rollouts", 9, 9.5),
        ("load weights", 9.75, 10),
        ("no rollouts", 11, 12),
        ("no rollouts", 15, 16),
    ]


def test_counters_hold_from_when_they_are_true(tmp_path: Path) -> None:
    failed = GroupDiscarded(group_id=1, reason="no_reward", detail=None)
    groups = [(1, admitted(0)), (1.5, admitted(1)), (2, generated(0)), (2, generated(1)), (3, ready(0)), (4, failed)]
    step = step_finished(1, spent=timings(waiting=1, computing=3, publishing=1, other=0), stats=engine(generated=50, busy=4.0))
    trace = trace_of(tmp_path / "trace.json", (0, START), *groups, (8, step))
    assert counts_of(trace, "groups") == [
        (1, {"live": 1, "ready": 0}),
        (1.5, {"live": 2, "ready": 0}),
        (3, {"live": 2, "ready": 1}),
        (4, {"live": 1, "ready": 1}),
        (8, {"live": 5, "ready": 2}),  # (the small ledger's)
    ]
    assert slices_of(trace)["steps"] == [("step 1", 3, 8)]
    assert counts_of(trace, "tokens/s") == [(3, {"generated": 10.0, "trained": 0.6})]
    assert counts_of(trace, "staleness") == [(3, {"mean": 0.0, "max": 0.0})]
    assert counts_of(trace, "engine") == [(3, {"idle share": pytest.approx(0.2), "loading share": 0.0})]


def test_a_resumed_run_is_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace_of(path, (5.0, admitted(0)))
    trace = trace_of(path, (3.0, admitted(0)), (4.0, generated(0)), version=2)
    assert [(e["pid"], e["args"]["name"]) for e in trace if e.get("name") == "process_name"] == [
        (1, "headrace"),
        (2, "headrace from step 2"),
    ]
    assert [(e["pid"], e["ph"], e["ts"]) for e in trace if e["ph"] in "BE"][:3] == [(1, "B", 5e6), (2, "B", 3e6), (2, "E", 4e6)]


class Recorder:
    """Keeps the steps, and how many groups were being generated at each change."""

    def __init__(self) -> None:
        self.steps: list[StepFinished] = []
        self.overlaps: list[int] = [0]

    def handle(self, time: float, event: Event) -> None:
        match event:
            case StepFinished():
                self.steps.append(event)
            case GroupAdmitted():
                self.overlaps.append(self.overlaps[-1] + 1)
            case GroupGenerated():
                self.overlaps.append(self.overlaps[-1] - 1)

    def close(self) -> None:
        """Nothing is open."""


@settings(max_examples=25, deadline=None)
@given(
    max_staleness=st.integers(0, 3),
    streams=st.booleans(),
    num_engines=st.integers(1, 2),
    seed=st.integers(0, 1000),
    num_held_out=st.integers(0, 2),
)
def test_a_simulated_run_is_drawn_second_for_second(
    tmp_path_factory: pytest.TempPathFactory, max_staleness: int, streams: bool, num_engines: int, seed: int, num_held_out: int
) -> None:
    folder, recorder = tmp_path_factory.mktemp("run"), Recorder()
    scenario = Scenario(
        max_staleness=max_staleness,
        streams=streams and max_staleness == 0,
        num_engines=num_engines,
        seed=seed,
        num_held_out=num_held_out,
        last_version=5,
        checkpoint_every=2,
    )
    simulate(scenario, folder, [TraceLog(folder / "trace.json"), recorder])
    trace = read_trace(folder / "trace.json")
    slices = slices_of(trace)
    assert lengths(slices["trainer"], "wait") == pytest.approx(sum(step.timings.waiting_for_groups for step in recorder.steps), abs=0.02)
    computing = lengths(slices["trainer"], "micro-batch") + lengths(slices["trainer"], "optimizer")
    assert computing == pytest.approx(sum(step.timings.computing for step in recorder.steps), abs=1e-3)
    assert lengths(slices["publish"], "publish") == pytest.approx(sum(step.timings.publishing for step in recorder.steps), abs=1e-3)
    staleness = [event["args"]["staleness"] for event in trace if event.get("name") == "micro-batch"]
    assert max(staleness) == max(int(token_staleness(step).max()) for step in recorder.steps)
    assert len([name for name in slices if name.startswith("rollouts")]) == max(recorder.overlaps)
    rollouts = [each for name, lane in slices.items() if name.startswith("rollouts") for each in lane]
    for _, start, end in [each for each in slices["engine"] if each[0] == "no rollouts"]:
        assert not any(start < other_end and other_start < end for _, other_start, other_end in rollouts)
    assert max(values["live"] for _, values in counts_of(trace, "groups")) == (max_staleness + 1) * scenario.groups_per_step


def lengths(slices: list[tuple[str, float, float]], name: str) -> float:
    return sum(end - start for what, start, end in slices if what.startswith(name))
