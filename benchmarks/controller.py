"""What the controller itself costs: groups per second through one core, with thousands of groups in flight.

    python benchmarks/controller.py [--rollouts 2 8] [--sinks none run] [--json]

The real controller drives scripted parts in real time: an engine and rewards that answer after some seconds, all groups side by
side, and a trainer that takes no time. With two rollouts a group, the slots and the waits offer about 2,200 groups/s: a core
that is not busy all the time keeps up. The process is pinned to one, and the CPU time of a group includes the scripted parts.
`none` attaches no sink, `run` those that every run writes its files with: event log, metrics, summary. The first and the last
round of slots are not counted. The last line of the output is one JSON object.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from interleaving import rounded
from machine import machine_facts

from headrace.launch.memory import rare_collections
from headrace.simulator.scripted_parts import Timing
from headrace.simulator.simulation import Scenario, simulate_on_this_loop
from headrace.telemetry.event_log import EventLog
from headrace.telemetry.events import Event, Sink, StepFinished
from headrace.telemetry.metrics_log import MetricsLog
from headrace.telemetry.summary import SummaryBuilder

GROUPS_PER_STEP = 256
SLOTS = 48 * GROUPS_PER_STEP
MAX_STALENESS = 127
"""Far more than the slowest group needs, so that nothing but the controller holds the trainer up."""
TOKEN_BUDGET = 4096
TIMING = Timing(
    median_length=8,
    length_sigma=0.8,
    max_length=24,
    seconds_per_token=0.38,
    reward_seconds=0.2,
    seconds_per_trained_token=0.0,
    step_seconds=0.0,
    publish_seconds=0.0,
)
"""Lengths differ widely, so that the groups that start together do not come back together."""


class Meter:
    """Sink that notes, at the end of every step, the time, the CPU's time and the groups in flight."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, int]] = []

    def handle(self, time_of_run: float, event: Event) -> None:
        if isinstance(event, StepFinished):
            self.steps.append((time.perf_counter(), time.process_time(), event.ledger.in_flight))

    def close(self) -> None:
        pass


def main() -> None:
    arguments = parse_arguments()
    pin_to_one_core()
    loads = [(rollouts, sinks) for rollouts in arguments.rollouts for sinks in arguments.sinks]
    runs: dict[tuple[int, str], list[dict[str, float]]] = {load: [] for load in loads}
    for _ in range(arguments.runs):
        for load in loads:
            runs[load].append(measure(*load, steps=arguments.steps))
    results = [{"rollouts_a_group": rollouts, "sinks": sinks, **medians(found)} for (rollouts, sinks), found in runs.items()]
    if not arguments.json:
        show(results)
    settings = {"groups_per_step": GROUPS_PER_STEP, "slots": SLOTS, "steps": arguments.steps, "runs": arguments.runs}
    print(json.dumps({"benchmark": "controller", "controller": results, "settings": settings, "machine": machine_facts()}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[2, 8], help="rollouts a group, 2 or more")
    parser.add_argument("--sinks", choices=("none", "run"), nargs="+", default=["none", "run"])
    parser.add_argument("--steps", type=int, default=60, help="training steps that are measured, of 256 groups each")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


def pin_to_one_core() -> None:
    """Not every system can: elsewhere the one event loop is all that computes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure(rollouts: int, sinks: str, *, steps: int) -> dict[str, float]:
    """One run, from the end of the first round of slots on."""
    warmup = SLOTS // GROUPS_PER_STEP
    # The last slots drain; beyond the steps that count, as many are trained as the slots hold.
    scenario = Scenario(
        groups_per_step=GROUPS_PER_STEP,
        num_generations=rollouts,
        max_staleness=MAX_STALENESS,
        slots=SLOTS,
        last_version=2 * warmup + steps,
        max_concurrent_requests=SLOTS,
        token_budget=TOKEN_BUDGET,
        timing=TIMING,
    )
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder, rare_collections():
        asyncio.run(simulate_on_this_loop(scenario, Path(folder, "run"), [*opened(sinks, Path(folder)), meter]))
    counted = meter.steps[warmup : warmup + steps + 1]
    (start, cpu_start, _), (end, cpu_end, _) = counted[0], counted[-1]
    groups = steps * GROUPS_PER_STEP
    return {
        "groups_in_flight": statistics.median(in_flight for _, _, in_flight in counted),
        "groups_per_second": groups / (end - start),
        "cpu_seconds_per_group": (cpu_end - cpu_start) / groups,
        "core_busy_share": (cpu_end - cpu_start) / (end - start),
    }


def opened(sinks: str, folder: Path) -> list[Sink]:
    if sinks == "none":
        return []
    return [EventLog(folder / "events.jsonl"), MetricsLog(folder / "metrics.jsonl"), SummaryBuilder()]


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: rounded(statistics.median(run[name] for run in runs)) for name in runs[0]}


def show(results: Sequence[dict[str, object]]) -> None:
    print(f"{'rollouts a group':>16} {'sinks':>6} {'groups in flight':>17} {'groups/s':>9} {'CPU µs a group':>15} {'core busy':>10}")
    for result in results:
        microseconds = 1e6 * float(str(result["cpu_seconds_per_group"]))
        print(
            f"{result['rollouts_a_group']:>16} {result['sinks']:>6} {result['groups_in_flight']:>17,.0f} "
            f"{result['groups_per_second']:>9,.0f} {microseconds:>15,.0f} {result['core_busy_share']:>10.0%}"
        )


if __name__ == "__main__":
    main()
