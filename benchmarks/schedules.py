"""The schedules side by side on the quickstart's task: short runs of each, taking turns.

    python benchmarks/schedules.py --model DIR [--steps 6] [--runs 2] [--json]

Rates leave out the first two steps. The last line of the output is one JSON object.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from end_to_end import WARMUP_STEPS, check_steps, seconds_per_step
from interleaving import rounded
from machine import machine_facts
from training_runs import SCHEDULES, Task, TrainingRun, run_headrace


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    task = Task(model=arguments.model.absolute(), steps=arguments.steps)
    runs: dict[str, list[TrainingRun]] = {schedule: [] for schedule in arguments.schedules}
    for _ in range(arguments.runs):
        for schedule, of_schedule in runs.items():
            of_schedule.append(run_headrace(task, schedule))
    result = {
        "benchmark": "schedules",
        "schedules": {schedule: summary_of(of_schedule) for schedule, of_schedule in runs.items()},
        "settings": {"model": task.model.name, "steps": task.steps, "runs": arguments.runs},
        "machine": machine_facts(),
    }
    if not arguments.json:
        show(result["schedules"])
    print(json.dumps(result))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--schedules", nargs="+", choices=tuple(SCHEDULES), default=list(SCHEDULES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args(argv)
    check_steps(parser, arguments.steps)
    return arguments


def summary_of(runs: Sequence[TrainingRun]) -> dict[str, float]:
    """Medians over the runs of means over the steps (the largest staleness: of all)."""

    def median(value_of: Any) -> float:
        return rounded(statistics.median(value_of(run) for run in runs))

    counted = [row for run in runs for row in run.metrics[WARMUP_STEPS:]]
    return {
        "seconds_per_step": median(lambda run: seconds_per_step(run.steps)),
        "tokens_per_second": median(lambda run: tokens(run) / (seconds_per_step(run.steps) * (len(run.steps) - WARMUP_STEPS))),
        "trainer_wait_share": rounded(statistics.fmean(row["wait_share/trainer"] for row in counted)),
        "engine_wait_share": rounded(statistics.fmean(row["wait_share/engine"] for row in counted)),
        "max_staleness": max(row["staleness/max"] for row in counted),
    }


def tokens(run: TrainingRun) -> int:
    """Completion tokens trained on after the warm-up."""
    return run.metrics[-1]["num_tokens"] - run.metrics[WARMUP_STEPS - 1]["num_tokens"]


def show(schedules: Mapping[str, Mapping[str, float]]) -> None:
    for schedule, summary in schedules.items():
        print(
            f"{schedule:>9}: {summary['seconds_per_step']:.2f} s a step, {summary['tokens_per_second']:.0f} tokens/s, "
            f"trainer waits {summary['trainer_wait_share']:.0%}, engine waits {summary['engine_wait_share']:.0%}, "
            f"staleness at most {summary['max_staleness']:.0f}"
        )


if __name__ == "__main__":
    main()
