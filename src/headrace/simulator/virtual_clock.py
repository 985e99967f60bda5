"""An event loop whose clock jumps: hours of a run in milliseconds, and the same order of events each time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.errors import StalledError

T = TypeVar("T")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """When every task waits, time moves to the next timer at once.

    Nothing outside the loop can wake it: no sockets, no threads. When nothing is left to wake it, it raises
    `StalledError` instead of hanging.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(selector=_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Call the function at once, in no virtual time: a thread would not know this clock."""
        future: asyncio.Future[T] = self.create_future()
        future.set_result(func(*args))
        return future

    def jump(self, seconds: float) -> None:
        """Move the clock."""
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Where a loop would sleep for its next timer, this moves its clock."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StalledError("every task waits and no timer is set: nothing could ever wake the run")
        if timeout > 0:
            self._loop.jump(timeout)
        return []


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end under a virtual clock that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(work)
