"""Where the time of a step goes."""

from collections import Counter
from typing import Literal

from headrace.interfaces import Clock
from headrace.telemetry.events import StepTimings

Phase = Literal["waiting_for_groups", "computing", "publishing", "other"]


class PhaseTimer:
    """Adds up the time of named phases that follow one another without gaps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: Counter[Phase] = Counter()
        self._phase: Phase = "other"
        self._since = clock()

    def enter(self, phase: Phase) -> float:
        """The time until the next call belongs to this phase; returns the seconds of the phase that ends."""
        now = self._clock()
        seconds = now - self._since
        self._seconds[self._phase] += seconds  # pyright: ignore[reportArgumentType] # a Counter of seconds
        self._phase, self._since = phase, now
        return seconds

    def finish_step(self) -> StepTimings:
        """The phases' seconds since the last call; the time goes on as `other`."""
        self.enter("other")
        seconds, self._seconds = self._seconds, Counter()
        return StepTimings(
            waiting_for_groups=seconds["waiting_for_groups"],
            computing=seconds["computing"],
            publishing=seconds["publishing"],
            other=seconds["other"],
        )
