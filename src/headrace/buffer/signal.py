"""Waiting for a condition without polling."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import StalledError

T = TypeVar("T")


class Signal:
    """Wakes coroutines that wait for something in shared state; whoever changes the state calls `notify`.

    Everything happens on one event loop, so that no lock is needed: what a waiter saw still holds when it goes on.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Have every waiter look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Wait for the predicate, which is looked at now and after each `notify`."""
        await self.wait_for(lambda: predicate() or None)

    async def wait_for(self, look: Callable[[], T | None]) -> T:
        """Wait until `look`, called now and after each `notify`, finds something; return it."""
        while (found := look()) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return found


async def limited(awaitable: Awaitable[T], *, seconds: float, what: Callable[[], str]) -> T:
    """Await with a limit.

    Raises:
        StalledError: The limit passed; the message ends with `what()`.
    """
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await awaitable
    except TimeoutError:
        if not timeout.expired():
            raise
        raise stalled(what(), seconds=seconds) from None


def stalled(what: str, *, seconds: float) -> StalledError:
    """The error of a wait that has passed the run's limit."""
    return StalledError(f"waited {seconds:g} s (run.stall_seconds) for {what}")
