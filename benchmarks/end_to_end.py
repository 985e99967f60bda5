"""Whole training runs side by side with TRL: the same prompts, the same numbers, one run after the other.

    python benchmarks/end_to_end.py --model DIR [--peer trl --peer-python PATH] [--few-shot 20] [--steps 20] [--json]

Additions in chat format, 8 prompts x 8 completions a step, at most 32 tokens each, learning rate 1e-5, no KL term; the reward is 1 when the
last number of the answer is right. After the last step `headrace eval` answers 80 of the 81 questions with either side's policy. Rates
leave out the first two steps. Repeat i trains with seed + i. The last line of the output is one JSON object.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from interleaving import rounded
from machine import load_average, machine_facts
from training_runs import SCHEDULES, Task, TrainedStep, TrainingRun, run_headrace, run_trl

WARMUP_STEPS = 2
RUNNING_MEAN = 5
"""Steps."""
GOAL = 0.9
"""Reward whose running mean is waited for."""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    task, peer_task = tasks(arguments)
    runs: dict[str, list[TrainingRun]] = {}
    order: list[dict[str, object]] = []
    for seed in range(task.seed, task.seed + arguments.repeats):
        for side in [*arguments.schedules, *arguments.peer]:
            if not arguments.json:
                print(f"running {side}, seed {seed} …", file=sys.stderr, flush=True)
            order.append({"side": side, "seed": seed, "load_average_before": load_average()})
            runs.setdefault(side, []).append(run_side(side, task, peer_task, seed, arguments.peer_python))
    result = summarize(runs, task, peer_task)
    result |= {"order": order, "machine": machine_facts()}
    if not arguments.json:
        show(result)
    print(json.dumps(result))


def run_side(side: str, task: Task, peer_task: Task, seed: int, peer_python: Path | None) -> TrainingRun:
    if side == "trl":
        assert peer_python is not None, "the arguments were checked"
        return run_trl(replace(peer_task, seed=seed), peer_python)
    return run_headrace(replace(task, seed=seed), side)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--schedules", nargs="+", choices=tuple(SCHEDULES), default=["async", "sync"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--few-shot", type=int, default=0, help="solved examples before each question")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first repeat")
    parser.add_argument("--evaluation-rollouts", type=int, default=4, help="completions of each question; 0 leaves the evaluation out")
    parser.add_argument("--peer", choices=("trl",), action="append", default=[])
    parser.add_argument("--peer-python", type=Path, help="Python of an environment with TRL")
    parser.add_argument("--peer-steps", type=int, help="steps of the peer, when fewer than --steps")
    parser.add_argument("--headrace-precision", choices=("auto", "float32"), default="auto")
    parser.add_argument("--trl-precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args(argv)
    if arguments.peer and arguments.peer_python is None:
        parser.error("TRL lives in an environment of its own: give its Python as --peer-python (make .venv-bench/installed makes one)")
    check_steps(parser, min(arguments.steps, arguments.peer_steps or arguments.steps))
    return arguments


def check_steps(parser: argparse.ArgumentParser, steps: int) -> None:
    if steps <= WARMUP_STEPS:
        parser.error(f"the first {WARMUP_STEPS} steps are not counted, so no step would be left: give more")


def tasks(arguments: argparse.Namespace) -> tuple[Task, Task]:
    """headrace's and the peer's: the same but for the number of steps."""
    task = Task(
        model=arguments.model.absolute(),
        steps=arguments.steps,
        few_shot=arguments.few_shot,
        seed=arguments.seed,
        evaluation_rollouts=arguments.evaluation_rollouts,
        headrace_precision=arguments.headrace_precision,
        trl_precision=arguments.trl_precision,
    )
    return task, replace(task, steps=arguments.peer_steps or arguments.steps)


def summarize(runs: Mapping[str, Sequence[TrainingRun]], task: Task, peer_task: Task) -> dict[str, object]:
    # Later steps are cheaper, as answers get shorter and groups equal: rates are of the steps that both sides made.
    common = min(task.steps, peer_task.steps) if "trl" in runs else task.steps
    sides = {side: summary_of(of_side, task.completions_per_step, steps=common) for side, of_side in runs.items()}
    ratios = {}
    if "trl" in sides:
        rate = sides["trl"]["completions_per_second"]
        ratios = {side: rounded(summary["completions_per_second"] / rate) for side, summary in sides.items() if side != "trl"}
    return {
        "benchmark": "end_to_end",
        "sides": sides,
        "ratios_to_trl": ratios,
        "peers": {side: of_side[0].versions for side, of_side in runs.items() if side == "trl"},
        "settings": {
            **asdict(task),
            "model": task.model.name,
            "peer_steps": peer_task.steps,
            "trl_rows_per_pass": peer_task.trl_rows_per_pass,
        },
    }


def summary_of(runs: Sequence[TrainingRun], completions_per_step: int, *, steps: int) -> dict[str, object]:
    """Medians over the repeats, rates of the first so many steps, and every repeat's curve."""
    seconds = statistics.median(seconds_per_step(run.steps[:steps]) for run in runs)
    reached = [seconds_to_goal(run.steps) for run in runs]
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    return {
        "seconds_per_step": rounded(seconds),
        "completions_per_second": rounded(completions_per_step / seconds),
        "completion_tokens_per_second": rounded(
            statistics.median(tokens_per_second(run.steps[:steps], completions_per_step) for run in runs)
        ),
        "reward_first_steps": rounded(statistics.median(mean_reward(run.steps[:RUNNING_MEAN]) for run in runs)),
        "reward_last_steps": rounded(statistics.median(mean_reward(run.steps[-RUNNING_MEAN:]) for run in runs)),
        "accuracy": rounded(statistics.median(accuracies)) if accuracies else None,
        "accuracies": accuracies,
        "seconds_to_goal": None if None in reached else rounded(statistics.median(reached)),
        "curves": [[{name: rounded(value) for name, value in asdict(step).items()} for step in run.steps] for run in runs],
    }


def seconds_per_step(steps: Sequence[TrainedStep]) -> float:
    """Wall time a step: from the end of the last warm-up step to the end of the last step."""
    return (steps[-1].time - steps[WARMUP_STEPS - 1].time) / (len(steps) - WARMUP_STEPS)


def tokens_per_second(steps: Sequence[TrainedStep], completions_per_step: int) -> float:
    tokens = sum(step.mean_length for step in steps[WARMUP_STEPS:]) * completions_per_step
    return tokens / (steps[-1].time - steps[WARMUP_STEPS - 1].time)


def mean_reward(steps: Sequence[TrainedStep]) -> float:
    return statistics.fmean(step.reward for step in steps)


def seconds_to_goal(steps: Sequence[TrainedStep]) -> float | None:
    """When the mean reward of the last steps first reached the goal; None when it never did."""
    for end in range(RUNNING_MEAN, len(steps) + 1):
        if mean_reward(steps[end - RUNNING_MEAN : end]) >= GOAL:
            return steps[end - 1].time
    return None


def show(result: Mapping[str, object]) -> None:
    for side, summary in result["sides"].items():
        ratio = result["ratios_to_trl"].get(side)
        reached, accuracy = summary["seconds_to_goal"], summary["accuracy"]
        print(
            f"{side:>9}: {summary['seconds_per_step']:.2f} s a step, {summary['completions_per_second']:.2f} completions/s, "
            f"reward {summary['reward_first_steps']:.2f} to {summary['reward_last_steps']:.2f}, "
            f"accuracy {'—' if accuracy is None else f'{accuracy:.2f}'}, {GOAL} after {'—' if reached is None else f'{reached:.0f} s'}"
            + (f", {ratio:.1f} x TRL" if ratio else "")
        )


if __name__ == "__main__":
    main()
