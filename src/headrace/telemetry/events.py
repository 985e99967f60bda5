"""What happens in a run, as typed events; sinks turn them into logs, metrics, files and the screen.

The controller emits; nothing it decides depends on a sink. Times are in seconds since the run's clock started (a
resumed run goes on from its checkpoint's time), so that a run under the virtual clock logs the same bytes each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.interfaces import Clock
from headrace.types import EngineStats, Floats, Ledger, Prompt, Rollout, RolloutReward, ScoredGroup, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The controller is about to start, or to go on: `version` is above 0 in a resumed run."""

    version: int
    last_version: int | None
    """None when the run ends with its prompts, whose number of steps depends on discards."""
    slots: int
    max_staleness: int
    prompts_per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdmitted(Event):
    """A prompt got a slot."""

    group_id: int
    epoch: int
    row: int
    version: int
    deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGenerated(Event):
    """All rollouts of a group are finished; it goes to the reward service."""

    group_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady(Event):
    """A group is scored. `num_failed` rollouts have no reward because a function failed."""

    group_id: int
    mean_reward: float | None
    """None when no rollout has a reward."""
    num_failed: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDiscarded(Event):
    """A group will not be trained on; its slot is free again."""

    group_id: int
    reason: str
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTrained(Event):
    """The trainer has taken a micro-batch in: its gradients are added up, or kept for the updates of the optimizer step."""

    version: int
    """Trainer version that trains on it."""
    group_ids: Sequence[int]
    num_tokens: int
    """Tokens computed, each prompt once."""
    staleness: int
    """Of its oldest token."""
    waited: float
    """Seconds for which the trainer waited for groups before."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStepFinished(Event):
    """The trainer has `version` now; the engines do not have it yet."""

    version: int
    waited: float
    """Seconds for which the trainer waited for groups since its last micro-batch: for groups with nothing to train on."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished(Event):
    """Every engine has the weights of `version`, or a copy to take over once its running rollouts have ended."""

    version: int
    seconds: float
    loading_seconds: float
    """The part of it in which engines copied weights; of several engines the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Seconds of one trip round the controller's loop; they add up to `total`."""

    waiting_for_groups: float
    computing: float
    """Accumulating micro-batches and the optimizer step."""
    publishing: float
    other: float
    """Evaluation, checkpoint and bookkeeping since the last step."""

    @property
    def total(self) -> float:
        """Wall time of the trip."""
        return self.waiting_for_groups + self.computing + self.publishing + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGroup:
    """A group as it was trained on."""

    scored: ScoredGroup
    advantages: Sequence[Floats | None]
    """Of each rollout's tokens; None for a rollout that took no part."""
    shadow_advantages: Mapping[str, Sequence[Floats | None]] = field(default_factory=dict[str, Sequence[Floats | None]])
    """The same of algorithms that are only compared with, by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(Event):
    """A training step is done, and its weights are published. `trained_at` is the version that its tokens' staleness is counted from."""

    trained_at: int
    report: StepReport
    groups: Sequence[TrainedGroup]
    ledger: Ledger
    timings: StepTimings
    engine: EngineStats
    """The engine's totals so far, all engines added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished(Event):
    """The held-out prompts were answered with the weights of `version`."""

    version: int
    metrics: Mapping[str, float]
    """`eval/reward` (the accuracy, when the reward is 0 or 1), `eval/mean_length`, `eval/clipped_ratio`, `eval/pass@k`."""
    answers: Sequence[tuple[Prompt, Rollout, RolloutReward]]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk."""

    version: int
    folder: Path
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The controller's loop has ended. `interrupted`: on the user's request, before the last step."""

    version: int
    interrupted: bool
    ledger: Ledger


class Sink(Protocol):
    """Something that events are shown or written to."""

    def handle(self, time: float, event: Event) -> None:
        """Take one event; called on the controller's thread, so it must be quick. A failure to write ends the run."""
        ...

    def close(self) -> None:
        """Flush and release; called once, also after an error."""
        ...


class Events:
    """Hands every event to every sink, stamped with the run's clock."""

    def __init__(self, clock: Clock, sinks: Sequence[Sink] = ()) -> None:
        self._clock = clock
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Give the event to all sinks, in their order."""
        time = self._clock()
        for sink in self._sinks:
            sink.handle(time, event)

    def close(self) -> None:
        """Close all sinks, in their order."""
        for sink in self._sinks:
            sink.close()
