"""What the numbers are meant to reach, and whether they do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Results = Mapping[str, Any]
"""Name of a benchmark: the JSON object that it printed."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A number and its bound."""

    name: str
    bound: Literal["≥", ">", "≤"]
    wanted: float
    measure: Callable[[Results], float | None]
    """None when a peer was not there; a benchmark that did not run raises KeyError."""


def check_targets(results: Results) -> list[dict[str, object]]:
    """Every target with what was measured: `met` is None when nothing was."""
    return [_checked(target, results) for target in TARGETS]


def _checked(target: Target, results: Results) -> dict[str, object]:
    try:
        found = target.measure(results)
    except KeyError:
        found = None
    met = None if found is None else {"≥": found >= target.wanted, ">": found > target.wanted, "≤": found <= target.wanted}[target.bound]
    return {"name": target.name, "bound": target.bound, "wanted": target.wanted, "found": found, "met": met}


def _over_vllm(peer: str, sequences: int) -> Callable[[Results], float | None]:
    return lambda results: results["decode"]["ratios"].get(peer, {}).get(str(sequences))


def _over_trl(benchmark: str) -> Callable[[Results], float | None]:
    return lambda results: results[benchmark]["ratios_to_trl"].get("async")


def _accuracy_over_trl(schedule: str) -> Callable[[Results], float | None]:
    """Of the task's questions after equal steps, medians over the seeds. Training rewards lag a step behind under `async`."""

    def measure(results: Results) -> float | None:
        result = results["end_to_end"]
        sides, settings = result["sides"], result["settings"]
        accuracies = [sides[side]["accuracy"] if side in sides else None for side in (schedule, "trl")]
        if None in accuracies or settings["peer_steps"] != settings["steps"]:
            return None
        return round(accuracies[0] - accuracies[1], 3)

    return measure


def _memory_growth(results: Results) -> float:
    peaks = [size["peak_mib"] for size in results["training"]["memory"]]
    return round(max(peaks) / peaks[0], 3)


def _controller_rate(results: Results) -> float | None:
    """Of the bare controller with small groups; nothing counts below ten thousand groups in flight."""
    loads = results["controller"]["controller"]
    rates = [
        load["groups_per_second"]
        for load in loads
        if load["sinks"] == "none" and load["rollouts_a_group"] == 2 and load["groups_in_flight"] >= 10_000
    ]
    return rates[0] if rates else None


TARGETS = (
    *(
        Target(
            name=f"decode over vLLM compiled, {how}, {sequences} sequences", bound=bound, wanted=wanted, measure=_over_vllm(peer, sequences)
        )
        for peer, how in (("vllm-defaults", "as installed"), ("vllm", "with all cores"))
        for sequences, bound, wanted in ((8, ">", 1), (32, "≥", 2.5), (64, "≥", 2.5))
    ),
    *(
        Target(
            name=f"decode as a share of the linear products' rate, {sequences} sequences",
            bound="≥",
            wanted=0.6,
            measure=lambda results, sequences=sequences: results["decode"]["share_of_roof"].get(str(sequences)),
        )
        for sequences in (8, 32, 64)
    ),
    Target(name="completions a second over TRL (async)", bound="≥", wanted=8, measure=_over_trl("end_to_end")),
    Target(
        name="completions a second over TRL, 20 solved examples (async)", bound="≥", wanted=15, measure=_over_trl("end_to_end_few_shot")
    ),
    *(
        Target(name=f"accuracy over TRL's after equal steps ({schedule})", bound="≥", wanted=0, measure=_accuracy_over_trl(schedule))
        for schedule in ("async", "sync")
    ),
    Target(
        name="publishing without packing over a plain copy",
        bound="≤",
        wanted=1.5,
        measure=lambda results: results["training"]["publish"]["ratio_beyond_packing"],
    ),
    Target(name="peak memory of the largest over the smallest batch", bound="≤", wanted=1.05, measure=_memory_growth),
    Target(name="controller's groups a second with 10,000 in flight", bound="≥", wanted=2000, measure=_controller_rate),
)
