"""The only place where tasks are made: the first failure cancels the others and is raised as itself."""

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Supervisor:
    """A scope for background tasks, `async with Supervisor() as tasks`.

    When a task fails, the scope's body is cancelled, the other tasks are cancelled and awaited, and the task's own error
    is raised. When the body ends, the tasks that still run are cancelled: they have nothing left to serve.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the scope's body."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def gather_both(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two coroutines side by side and return both results; the first failure cancels the other and is raised."""
    results = await gather_in_order([first, second])
    return results[0], results[1]  # pyright: ignore[reportReturnType] # (in the order given)


async def gather_in_order(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side and return their results in order; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as error:
        raise _first(error) from None
    return [task.result() for task in tasks]
