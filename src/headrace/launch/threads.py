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
    """The recipe's numbers; `auto` gives each side all cores, so that one that waits leaves them to the other.

    That needs OpenMP threads which sleep while they wait, as importing headrace before torch arranges. Where they spin, sides
    that overlap get half of the cores each: with all of them, either would be several times slower than alone.
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    overlap = recipe.schedule.type != "sync"
    spin = os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE"
    share = max(1, cores // 2) if overlap and spin else cores
    engine, trainer = recipe.engine.threads, recipe.training.threads
    return ThreadShares(engine=share if engine == "auto" else engine, trainer=share if trainer == "auto" else trainer)
