"""`trace.json`, the time line of a run: what each part did when, and what waited for what."""

import heapq
from pathlib import Path

from headrace.telemetry.events import (
    CheckpointSaved,
    EvaluationFinished,
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
from headrace.telemetry.metrics import finite, step_metrics
from headrace.telemetry.run_files import json_fields
from headrace.telemetry.trace_file import Args, TraceFile

_TRACKS = {"steps": 101, "trainer": 102, "publish": 103, "checkpoint": 104, "evaluation": 105, "engine": 106}
_FIRST_ROLLOUT_LANE, _FIRST_REWARD_LANE = 1_000, 1_000_000
_SHORTEST_WAIT = 1e-3
"""Seconds; what is shorter is the planning of the next micro-batch."""
_COUNTERS = {
    "staleness": {"mean": "staleness/mean", "max": "staleness/max"},
    "tokens/s": {"generated": "tokens_per_second/generated", "trained": "tokens_per_second/trained"},
    "engine": {"idle share": "wait_share/engine", "loading share": "engine/loading_share"},
}
"""The counters that a step sets: the name of each value, and the metric that it is."""

GroupEvent = GroupAdmitted | GroupGenerated | GroupReady | GroupDiscarded


class TraceLog:
    """Sink that writes a trace for ui.perfetto.dev and chrome://tracing; a resumed run goes on in the same file, as a process of its own.

    Tracks: `steps`; `trainer` (waits for groups, micro-batches, optimizer steps); `publish`; `checkpoint`; `evaluation`; `engine`
    (loading weights, and the times in which it had nothing to compute); as many lanes of `rollouts` and of `rewards` as groups
    overlap. Counters: live and ready groups, and of each step its staleness, rates and the engine's shares.

    Args:
        path: The file.
        version: Version that the run goes on from; 0: a new run.

    Raises:
        RunFolderError: The file cannot be written.
    """

    def __init__(self, path: Path, *, version: int = 0) -> None:
        self._file = TraceFile(path, process=f"headrace from step {version}" if version else "headrace")
        self._rollouts = _Lanes("rollouts", _FIRST_ROLLOUT_LANE, self._file)
        self._rewards = _Lanes("rewards", _FIRST_REWARD_LANE, self._file)
        self._idle_since: float | None = None
        self._live = self._ready = 0
        self._previous: StepFinished | None = None

    def handle(self, time: float, event: Event) -> None:
        """Write what the event begins or ends.

        Raises:
            RunFolderError: The disk is full, or the file cannot be written.
        """
        match event:
            case GroupAdmitted() | GroupGenerated() | GroupReady() | GroupDiscarded():
                self._move_group(time, event)
            case StepFinished():
                self._finish_step(time, event)
            case RunStarted():
                self._idle_since = time
            case RunFinished():
                self._end_idleness(time)
            case _:
                self._draw_work(time, event)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _move_group(self, time: float, event: GroupEvent) -> None:
        group = event.group_id
        match event:
            case GroupAdmitted():
                self._end_idleness(time)
                self._rollouts.enter(group, time, json_fields(event))
                self._count_groups(time, live=self._live + 1, ready=self._ready)
            case GroupGenerated():
                self._rollouts.leave(group, time, json_fields(event))
                self._rewards.enter(group, time, json_fields(event))
                self._begin_idleness(time)
            case GroupReady():
                self._rewards.leave(group, time, json_fields(event))
                self._count_groups(time, live=self._live, ready=self._ready + 1)
            case GroupDiscarded():
                self._rewards.leave(group, time, json_fields(event))
                self._count_groups(time, live=self._live - 1, ready=self._ready)

    def _finish_step(self, time: float, event: StepFinished) -> None:
        start, metrics = time - event.timings.total, step_metrics(event, self._previous)
        self._previous = event
        self._draw("steps", f"step {event.report.version}", start, time, metrics)
        self._count_groups(time, live=event.ledger.live, ready=event.ledger.ready)
        for counter, names in _COUNTERS.items():
            values = {value: metrics[metric] for value, metric in names.items() if metric in metrics}
            if values:
                self._file.count(counter, time=start, values=values)

    def _draw_work(self, time: float, event: Event) -> None:
        """Draw an event that carries its seconds, where its part is."""
        match event:
            case MicroBatchTrained() | OptimizerStepFinished():
                self._draw_training(time, event)
            case WeightsPublished():
                self._draw("publish", f"publish {event.version}", time - event.seconds, time, json_fields(event))
                self._engine_worked(time - event.loading_seconds, time)
                self._draw("engine", "load weights", time - event.loading_seconds, time, {"version": event.version})
            case EvaluationFinished():
                self._engine_worked(time - event.seconds, time)
                self._draw("evaluation", f"evaluate {event.version}", time - event.seconds, time, finite(dict(event.metrics)))
            case CheckpointSaved():
                self._draw("checkpoint", event.folder.name, time - event.seconds, time, {"version": event.version})
            case _:
                pass

    def _draw_training(self, time: float, event: MicroBatchTrained | OptimizerStepFinished) -> None:
        start = time - event.seconds
        if event.waited > _SHORTEST_WAIT:
            self._draw("trainer", "wait for groups", start - event.waited, start, {})
        name = "micro-batch" if isinstance(event, MicroBatchTrained) else "optimizer step"
        self._draw("trainer", name, start, time, json_fields(event))

    def _draw(self, track: str, name: str, start: float, end: float, args: Args) -> None:
        self._file.slice(_TRACKS[track], track, name, start=start, end=end, args=args)

    def _count_groups(self, time: float, *, live: int, ready: int) -> None:
        self._live, self._ready = live, ready
        self._file.count("groups", time=time, values={"live": live, "ready": ready})

    def _engine_worked(self, start: float, end: float) -> None:
        self._end_idleness(start)
        self._begin_idleness(end)

    def _begin_idleness(self, time: float) -> None:
        if not self._rollouts.occupied:
            self._idle_since = time

    def _end_idleness(self, time: float) -> None:
        if self._idle_since is not None and self._idle_since < time:
            self._draw("engine", "no rollouts", self._idle_since, time, {})
        self._idle_since = None


class _Lanes:
    """Tracks for groups that overlap: each group enters the first free lane, so that there are as many lanes as ever overlapped."""

    def __init__(self, name: str, first_track: int, file: TraceFile) -> None:
        self._name = name
        self._next_track = self._first_track = first_track
        self._file = file
        self._free: list[int] = []
        self._track_of: dict[int, int] = {}

    @property
    def occupied(self) -> bool:
        """Whether any group is in a lane."""
        return bool(self._track_of)

    def enter(self, group_id: int, time: float, args: Args) -> None:
        """Begin the group's slice."""
        track = self._track_of[group_id] = self._take_track()
        self._file.begin(track, f"{self._name} {track - self._first_track + 1}", f"group {group_id}", time=time, args=args)

    def leave(self, group_id: int, time: float, args: Args) -> None:
        """End the group's slice."""
        track = self._track_of.pop(group_id)
        heapq.heappush(self._free, track)
        self._file.end(track, time=time, args=args)

    def _take_track(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next_track += 1
        return self._next_track - 1
