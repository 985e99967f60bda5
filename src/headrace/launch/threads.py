"""How the CPU's cores are divided among engine, trainer and scorers."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from headrace.config.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadShares:
    """For each side the context in which it computes, which gives a function that says how many threads to use now."""

    engine: AbstractContextManager[Callable[[], int]]
    trainer: AbstractContextManager[Callable[[], int]]
    scorers: AbstractContextManager[Callable[[], int]]
    """Each of them is a side of its own."""


def thread_shares(recipe: Recipe, *, cores: int | None = None) -> ThreadShares:
    """The recipe's numbers, the trainer's for scorers too; sides with `auto` share the cores, each taking those that others leave idle."""
    shared = SharedCores(len(os.sched_getaffinity(0)) if cores is None else cores)

    def side(number: Literal["auto"] | int) -> AbstractContextManager[Callable[[], int]]:
        return shared.side() if number == "auto" else nullcontext(lambda: number)

    training = recipe.training.threads
    return ThreadShares(engine=side(recipe.engine.threads), trainer=side(training), scorers=side(training))


class SharedCores:
    """Divides the cores evenly among the sides that compute at the moment.

    With more threads than cores, each of them waits for the others at every operation: on two cores, a trainer and an engine of
    one thread each were faster together than with two each.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._computing = 0
        self._lock = Lock()

    def side(self) -> AbstractContextManager[Callable[[], int]]:
        """The context in which one side computes."""
        return _Side(self)

    def share(self) -> int:
        """Threads of each side that computes now, at least 1."""
        return max(1, self._cores // max(1, self._computing))

    def count(self, change: int) -> None:
        """So many more sides compute."""
        with self._lock:
            self._computing += change


class _Side(AbstractContextManager[Callable[[], int]]):
    def __init__(self, cores: SharedCores) -> None:
        self._cores = cores

    def __enter__(self) -> Callable[[], int]:
        self._cores.count(1)
        return self._cores.share

    def __exit__(self, *_: object) -> None:
        self._cores.count(-1)
