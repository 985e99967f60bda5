"""How the CPU's threads are divided between engine and trainer."""

import os
from dataclasses import dataclass

from headrace.config.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadShares:
    """Threads of each side's computations."""

    engine: int
    trainer: int


def thread_shares(recipe: Recipe) -> ThreadShares:
    """The recipe's numbers; `auto` gives each side all cores.

    The sides wait for one another often enough that sharing all cores beats pinning them apart; measured in docs/architecture.md.
    """
    cores = len(os.sched_getaffinity(0))
    engine, trainer = recipe.engine.threads, recipe.training.threads
    return ThreadShares(engine=cores if engine == "auto" else engine, trainer=cores if trainer == "auto" else trainer)
