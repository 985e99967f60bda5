"""What staleness costs, and what a correction gives back: final accuracy by max_staleness and algorithm.

    python benchmarks/staleness_study.py --model DIR [--staleness 0 1 2 4 8 16] [--seeds 0 1 2] [--steps 32]

Additions of two numbers from 10 to 49, of which the model answers some 6 % at first. Every run is written to the results file as it
ends, and runs that are in the file already are not made again; so an interrupted study goes on where it stopped, and more seeds can be
added. At the end `docs/staleness_study.md` and its picture are written from the file; `--report` does that alone.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import training_runs
from addition import additions
from interleaving import rounded
from machine import machine_facts
from staleness_report import write_report
from training_runs import CLIPPED_AT_SAMPLER, Task, run_recipe, write_recipe

from headrace.telemetry.metrics_log import read_metrics

ALGORITHMS: Mapping[str, Mapping[str, object]] = {
    "ppo": CLIPPED_AT_SAMPLER,
    "areal": {"name": "areal"},
    "a3po": {"name": "a3po"},
}
"""`ppo` is naive: clipped against whoever sampled, however long ago."""
RESULTS = Path(__file__).parent / "results" / "staleness_study.json"
HELD_OUT = 64
MINIBATCHES = 2
"""Optimizer updates a step: with a single one, the proximal policy of `areal` is the present one and nothing is ever clipped."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One run of the study."""

    max_staleness: int
    algorithm: str
    seed: int
    steps: int


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    results = read_results(arguments.results)
    if not arguments.report:
        for condition in conditions(arguments):
            if all(run["condition"] != asdict(condition) for run in results["runs"]):
                print(f"{condition} …", flush=True)
                results["runs"].append(run(condition, arguments.model.absolute()))
                results |= {"machine": machine_facts(), "finished": time.strftime("%Y-%m-%d %H:%M")}
                arguments.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_report(results)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4, 8, 16])
    parser.add_argument("--algorithms", nargs="+", choices=tuple(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="write the page from the results so far")
    arguments = parser.parse_args(argv)
    if arguments.model is None and not arguments.report:
        parser.error("give the model as --model, or --report to write the page from the results so far")
    return arguments


def conditions(arguments: argparse.Namespace) -> Iterator[Condition]:
    """Seed by seed, so that a study that is cut short has whole seeds."""
    for seed, max_staleness, algorithm in product(arguments.seeds, arguments.staleness, arguments.algorithms):
        yield Condition(max_staleness=max_staleness, algorithm=algorithm, seed=seed, steps=arguments.steps)


def run(condition: Condition, model: Path) -> dict[str, Any]:
    """Train, and keep what the study asks about."""
    with tempfile.TemporaryDirectory(prefix="headrace-study-") as name:
        folder = Path(name)
        recipe = write_recipe(recipe_of(condition, model, folder), additions(range(10, 50), few_shot=0, seed=condition.seed), folder)
        run_recipe(recipe, name=str(condition), steps=condition.steps)
        rows = read_metrics(folder / "run" / "metrics.jsonl")
    return {"condition": asdict(condition), **summary_of(rows)}


def recipe_of(condition: Condition, model: Path, folder: Path) -> dict[str, dict[str, Any]]:
    schedule = {"type": "async", "max_staleness": condition.max_staleness} if condition.max_staleness else {"type": "sync"}
    algorithm = {**ALGORITHMS[condition.algorithm], "num_minibatches": MINIBATCHES}
    task = Task(model=model, steps=condition.steps, max_completion_length=24, seed=condition.seed)
    recipe = training_runs.recipe_of(task, folder, schedule=schedule, algorithm=algorithm)
    recipe["data"] |= {"held_out": HELD_OUT, "max_prompt_length": 96}
    return {**recipe, "evaluation": {"temperature": 1.0, "num_rollouts": 4}}


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy of the held-out prompts before and after, and means over the training steps."""
    evaluations = [row["eval/reward"] for row in rows if "eval/reward" in row]
    steps = [row for row in rows if "time/step" in row]

    def found(name: str) -> list[float]:
        """A step that computes nothing, because no group of it has a signal, reports nothing of its tokens."""
        return [row[name] for row in steps if name in row]

    def mean(name: str) -> float:
        return rounded(statistics.fmean(found(name)))

    return {
        "accuracy_before": rounded(evaluations[0]),
        "accuracy": rounded(evaluations[-1]),
        "clip_share": mean("clip_ratio/region_mean"),
        "mean_staleness": mean("staleness/mean"),
        "largest_staleness": max(found("staleness/max")),
        "largest_weight": rounded(max(found("sampling/importance_sampling_ratio/max"))),
        "ess": mean("ess"),
        "seconds": rounded(sum(row["time/step"] for row in steps)),
        "rewards": [rounded(row["reward"]) for row in steps],
    }


def read_results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": []}


if __name__ == "__main__":
    main()
