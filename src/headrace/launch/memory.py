"""Giving freed memory back to the operating system, and keeping Python from looking through what stays."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.telemetry.events import Event, StepFinished


@contextmanager
def rare_collections() -> Iterator[None]:
    """While it lasts, leave everything that exists now out of Python's garbage collections, and make these rarer.

    A full one looks at every object of torch and transformers and at every live group, which takes a good part of a second.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


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
