"""Giving freed memory back to the operating system."""

import ctypes
import sys

from headrace.telemetry.events import Event, StepFinished


class FreedMemoryReturner:
    """Sink that has the C library return what it keeps of freed memory, after every training step.

    Tensors come and go in sizes that differ from step to step, and leave gaps in the heap that glibc keeps: on the quickstart about
    two gigabytes, as much as weights, gradients and moments together. Other C libraries are left alone.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None

    def handle(self, time: float, event: Event) -> None:
        """Trim after a step; a fraction of a second for gigabytes."""
        if self._trim is not None and isinstance(event, StepFinished):
            self._trim(0)

    def close(self) -> None:
        """Nothing is open."""
