"""How the CPU's cores are divided between engine and trainer."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock

from headrace.config.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadShares:
    """For each side the context in which it computes, which gives the number of threads to use."""

    engine: AbstractContextManager[int]
    trainer: AbstractContextManager[int]


def thread_shares(recipe: Recipe, *, cores: int | None = None) -> ThreadShares:
    """The recipe's numbers; sides with `auto` share the cores, each taking those that the other leaves idle."""
    shared = SharedCores(len(os.sched_getaffinity(0)) if cores is None else cores)
    engine, trainer = recipe.engine.threads, recipe.training.threads
    return ThreadShares(
        engine=shared.side() if engine == "auto" else nullcontext(engine),
        trainer=shared.side() if trainer == "auto" else nullcontext(trainer),
    )


class SharedCores:
    """Divides the cores evenly among the sides that compute at the moment.

    With more threads than cores, each of them waits for the others at every operation: on two cores, a trainer and an engine of
    one thread each were faster together than with two each.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._computing = 0
        self._lock = Lock()

    def side(self) -> AbstractContextManager[int]:
        """The context in which one side computes."""
        return _Side(self)

    def enter(self) -> int:
        """One more side computes; returns its share, at least 1."""
        with self._lock:
            self._computing += 1
            return max(1, self._cores // self._computing)

    def leave(self) -> None:
        """One side computes no more."""
        with self._lock:
            self._computing -= 1


class _Side(AbstractContextManager[int]):
    def __init__(self, cores: SharedCores) -> None:
        self._cores = cores

    def __enter__(self) -> int:
        return self._cores.enter()

    def __exit__(self, *_: object) -> None:
        self._cores.leave()
