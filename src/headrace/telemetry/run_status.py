"""Where a run stands, added up from its events: what the screen shows."""

from collections import Counter, deque
from dataclasses import dataclass, field

from headrace.telemetry.distances import REVERSE_KL
from headrace.telemetry.events import (
    EvaluationFinished,
    Event,
    GroupAdmitted,
    GroupDiscarded,
    GroupGenerated,
    GroupReady,
    RunStarted,
    StepFinished,
)
from headrace.telemetry.metrics import MetricRows

_RECENT_STEPS = 20


@dataclass(slots=True)
class RunStatus:
    """The run so far, in this process. `version` and `metrics` are those of the last step, `evaluations` come as (version, metrics)."""

    time: float = 0.0
    started: RunStarted | None = None
    version: int = 0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    rewards: list[float] = field(default_factory=list[float])
    reverse_kls: list[float] = field(default_factory=list[float])
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list[tuple[int, dict[str, float]]])
    worst_staleness: int = 0
    generating: set[int] = field(default_factory=set[int])
    """Ids of the groups in this state; likewise below."""
    scoring: set[int] = field(default_factory=set[int])
    ready: set[int] = field(default_factory=set[int])
    trained_groups: int = 0
    discarded: Counter[str] = field(default_factory=Counter[str])
    """Groups by reason."""
    failed_rewards: int = 0
    """Rollouts."""
    skipped_updates: int = 0
    _rows: MetricRows = field(default_factory=MetricRows)
    _step_seconds: deque[float] = field(default_factory=lambda: deque[float](maxlen=_RECENT_STEPS))

    def observe(self, time: float, event: Event) -> None:
        """Take one event in."""
        self.time = time
        row = self._rows.row(event)
        match event:
            case RunStarted():
                self.started, self.version = event, event.version
            case StepFinished() if row:
                self._finish_step(event, row[1])
            case EvaluationFinished() if row:
                self.evaluations.append(row)
            case _:
                self._move_group(event)

    @property
    def seconds_left(self) -> float | None:
        """Time to the last step at the pace of the recent ones; None before the first, or when nobody knows the last step."""
        if self.last_version is None or not self._step_seconds:
            return None
        return sum(self._step_seconds) / len(self._step_seconds) * (self.last_version - self.version)

    @property
    def last_version(self) -> int | None:
        """Version after the last step; None when the run ends with its prompts."""
        return self.started.last_version if self.started else None

    def _finish_step(self, event: StepFinished, metrics: dict[str, float]) -> None:
        self.version, self.metrics = event.report.version, metrics
        self._step_seconds.append(event.timings.total)
        self.worst_staleness = max(self.worst_staleness, int(metrics.get("staleness/max", 0)))
        self.skipped_updates += event.report.skipped_updates
        self.trained_groups = event.ledger.trained
        self.discarded = Counter(event.ledger.discarded)
        if "reward" in metrics:
            self.rewards.append(metrics["reward"])
        if REVERSE_KL in metrics:
            self.reverse_kls.append(metrics[REVERSE_KL])
        for trained in event.groups:
            self._forget(trained.scored.group.group_id)

    def _move_group(self, event: Event) -> None:
        match event:
            case GroupAdmitted():
                self.generating.add(event.group_id)
            case GroupGenerated():
                self._forget(event.group_id)
                self.scoring.add(event.group_id)
            case GroupReady():
                self._forget(event.group_id)
                self.ready.add(event.group_id)
                self.failed_rewards += event.num_failed
            case GroupDiscarded():
                self._forget(event.group_id)
                self.discarded[event.reason] += 1
            case _:
                pass

    def _forget(self, group_id: int) -> None:
        for groups in (self.generating, self.scoring, self.ready):
            groups.discard(group_id)
