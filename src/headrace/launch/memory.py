"""Giving freed memory back to the operating system."""

import ctypes
import sys

from headrace.telemetry.events import Event, StepFinished

_M_ARENA_MAX = -8
"""glibc's `malloc.h`: the most heaps that threads divide among them."""


class FreedMemoryReturner:
    """Sink that has the C library return what it keeps of freed memory, after every training step; make it before the threads start.

    Tensors come and go in sizes that differ from step to step, and leave gaps in the heap that glibc keeps: on the quickstart about
    two gigabytes, as much as weights, gradients and moments together. One heap for all threads lets engine and trainer use each
    other's gaps. Other C libraries are left alone.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None) if sys.platform.startswith("linux") else None
        if self._trim is not None:
            library.mallopt(_M_ARENA_MAX, 1)

    def handle(self, time: float, event: Event) -> None:
        """Trim after a step; a fraction of a second for gigabytes."""
        if self._trim is not None and isinstance(event, StepFinished):
            self._trim(0)

    def close(self) -> None:
        """Nothing is open."""
