"""Measuring candidates in turns, so that all of them meet the same machine."""

import statistics
import time
from collections.abc import Callable, Mapping

SETTLE_SECONDS = 0.5
"""OpenMP threads of whoever ran before may spin this long."""


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(candidates: Mapping[str, Callable[[], float]], *, runs: int) -> dict[str, list[float]]:
    """The value that each candidate returns, run after run, the candidates taking turns; a first turn, to warm up, does not count."""
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(1 + runs):
        for name, measure in candidates.items():
            time.sleep(SETTLE_SECONDS)
            values[name].append(measure())
    return {name: of_candidate[1:] for name, of_candidate in values.items()}


def medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(of_candidate) for name, of_candidate in values.items()}


def rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
