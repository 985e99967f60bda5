"""`[schedule]`: how generation and training overlap. A schedule is numbers and policies, never a second trainer."""

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section


class SyncSchedule(Section):
    """Generate a batch, then train on it: the usual baseline."""

    type: Literal["sync"] = "sync"

    @property
    def max_staleness(self) -> int:
        """Every token is of the version that trains on it."""
        return 0


class PeriodicSchedule(Section):
    """Training streams over the groups as they are scored, one update after the last: the same result as `sync`, sooner."""

    type: Literal["periodic"] = "periodic"

    @property
    def max_staleness(self) -> int:
        """Every token is of the version that trains on it."""
        return 0


class AsyncSchedule(Section):
    """Generation never stops; new weights interrupt unfinished rollouts."""

    type: Literal["async"] = "async"
    max_staleness: int = Field(default=1, ge=0)
    """No token is ever trained on by weights more than this many steps newer than those that sampled it."""
    slots: int | None = Field(default=None, ge=1)
    """Groups alive at once; unset gives all that the bound allows, (max_staleness + 1) · prompts_per_step.
    Fewer leave slack for stragglers."""
    order: Literal["deadline", "completion"] = "deadline"
    """`deadline` keeps the bound for every token; `completion` trains the first finished (AReaL's rule): only the count is bounded."""
    interruption: Literal["recompute", "continue", "finish"] = "recompute"
    """Unfinished rollouts, when new weights arrive: prefill again under the new weights (`recompute`), go on with the old cache
    (`continue`), or end on the old weights (`finish`)."""
    stream: bool = False
    """Start training with the first groups that may be trained on, instead of when the batch is complete."""


ScheduleSection = Annotated[SyncSchedule | PeriodicSchedule | AsyncSchedule, Field(discriminator="type")]
