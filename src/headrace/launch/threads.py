"""How the CPU's threads are divided between engine and trainer."""

import os
from dataclasses import dataclass

from headrace.config.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadShares:
    """Threads of each side's computations."""

    engine: int
    trainer: int


def thread_shares(recipe: Recipe, *, cores: int | None = None) -> ThreadShares:
    """The recipe's numbers; `auto` gives each side all cores when they take turns (`sync`), and half of them when they overlap.

    Two sides with all cores each would be slower than either alone: OpenMP's threads spin while they wait for one another
    (measured in docs/architecture.md).
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    share = cores if recipe.schedule.type == "sync" else max(1, cores // 2)
    engine, trainer = recipe.engine.threads, recipe.training.threads
    return ThreadShares(engine=share if engine == "auto" else engine, trainer=share if trainer == "auto" else trainer)
