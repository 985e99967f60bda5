"""Short training runs of the addition task, each in a process of its own: headrace's command, or TRL's trainer."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from addition import ONE_DIGIT, Row, additions, write_rows
from peer_process import peer_environment

from headrace.errors import PartDiedError, StalledError
from headrace.telemetry.metrics_log import read_metrics

SCHEDULES: Mapping[str, dict[str, object]] = {
    "sync": {"type": "sync"},
    "periodic": {"type": "periodic"},
    "async": {"type": "async", "max_staleness": 1},
}
CLIPPED_AT_SAMPLER: Mapping[str, object] = {"name": "grpo", "denominator": "tokens"}
"""As TRL computes GRPO: clipped against whoever sampled, divided by the batch's tokens."""
ROWS = "rows.jsonl"
HEADRACE = (sys.executable, "-m", "headrace")
TRL_WORKER = Path(__file__).parent / "peers" / "trl_grpo.py"
SECONDS_A_STEP = 600
"""Limit of a run: this, times its steps."""
LONG_PROMPT_ROWS = 16
"""Rows of a pass of TRL when prompts are long: 64 rows of 480 tokens take more than 24 GiB."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What both sides train, with which numbers."""

    model: Path
    steps: int
    few_shot: int = 0
    """Solved examples before each question, which lengthen the prompt."""
    prompts_per_step: int = 8
    num_generations: int = 8
    max_completion_length: int = 32
    learning_rate: float = 1e-5
    seed: int = 0
    evaluation_rollouts: int = 0
    """Completions of each question, drawn from the trained policy; 0 leaves the evaluation out."""
    headrace_precision: str = "auto"
    """`auto`: bfloat16 arithmetic where the processor is fast at it, float32 weights. Or `float32`."""
    trl_precision: str = "float32"
    """`float32`, or `bfloat16` by autocast."""

    @property
    def completions_per_step(self) -> int:
        return self.prompts_per_step * self.num_generations

    @property
    def trl_rows_per_pass(self) -> int:
        """Completions of a forward and backward pass; TRL accumulates the gradients of a step's passes."""
        return LONG_PROMPT_ROWS if self.few_shot else self.completions_per_step


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """A step of either side."""

    time: float
    """Seconds since the first step began."""
    seconds: float
    reward: float
    mean_length: float
    """Tokens of a completion."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A finished run."""

    steps: Sequence[TrainedStep]
    accuracy: float | None = None
    """Of the trained policy, at temperature 1."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """headrace's own row of each step."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of TRL and what it runs on."""


def run_headrace(task: Task, schedule: str) -> TrainingRun:
    """`headrace train` on a recipe, as a user runs it."""
    with tempfile.TemporaryDirectory(prefix="headrace-benchmark-") as name:
        folder = Path(name)
        recipe = write_task(task, schedule, folder)
        run_recipe(recipe, name=f"headrace ({schedule})", steps=task.steps)
        rows = [row for row in read_metrics(folder / "run" / "metrics.jsonl") if "time/step" in row]
        accuracy = accuracy_of(folder / "run" / "final", task, folder)
    began = rows[0]["time"] - rows[0]["time/step"]
    steps = [
        TrainedStep(time=row["time"] - began, seconds=row["time/step"], reward=row["reward"], mean_length=row["completions/mean_length"])
        for row in rows
    ]
    return TrainingRun(steps=steps, accuracy=accuracy, metrics=rows)


def run_recipe(recipe: Path, *, name: str, steps: int) -> None:
    """`headrace train` in a process of its own."""
    run(name, [*HEADRACE, "train", str(recipe)], steps=steps)


def write_task(task: Task, schedule: str, folder: Path) -> Path:
    """Write the rows and the recipe; returns the recipe."""
    rows = additions(ONE_DIGIT, few_shot=task.few_shot, seed=task.seed)
    algorithm = {"name": "a3po"} if schedule == "async" else CLIPPED_AT_SAMPLER
    return write_recipe(recipe_of(task, folder, schedule=SCHEDULES[schedule], algorithm=algorithm), rows, folder)


def write_recipe(recipe: Mapping[str, object], rows: Sequence[Row], folder: Path) -> Path:
    """Write a recipe, and the rows that it reads; returns the recipe."""
    write_rows(rows, folder / ROWS)
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(recipe), encoding="utf-8")
    return path


def recipe_of(task: Task, folder: Path, *, schedule: Mapping[str, object], algorithm: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """The quickstart's choices, but for what the task sets."""
    precision = {"auto": ("auto", "auto"), "float32": ("none", "float32")}
    autocast, engine_dtype = precision[task.headrace_precision]
    return {
        "run": {"output_dir": str(folder / "run"), "seed": task.seed},
        "model": {"name_or_path": str(task.model)},
        "data": {"source": {"type": "file", "path": str(folder / ROWS)}, "max_prompt_length": 1024},
        "rewards": {"functions": [{"type": "exact_number"}]},
        "sampling": {"max_completion_length": task.max_completion_length},
        "schedule": dict(schedule),
        "algorithm": {**algorithm, "num_generations": task.num_generations},
        "training": {
            "prompts_per_step": task.prompts_per_step,
            "max_steps": task.steps,
            "learning_rate": task.learning_rate,
            "token_budget": 2048,
            "autocast": autocast,
        },
        "engine": {"dtype": engine_dtype, "max_concurrent_sequences": task.completions_per_step},
        "checkpoint": {"every_steps": task.steps + 1},
        "telemetry": {"report_to": []},
    }


def accuracy_of(model: Path, task: Task, folder: Path) -> float | None:
    """Share of right answers to the task's questions at temperature 1, by `headrace eval`, whoever trained the model."""
    if not task.evaluation_rollouts:
        return None
    settings = [
        # All rows but one, which is the least that a recipe keeps for training.
        f"data.held_out={len(ONE_DIGIT) ** 2 - 1}",
        "evaluation.temperature=1.0",
        f"evaluation.num_rollouts={task.evaluation_rollouts}",
    ]
    shown = run("headrace eval", [*HEADRACE, "eval", str(folder / "recipe.toml"), *settings, "--model", str(model)], steps=1)
    return float(dict(line.split() for line in shown.splitlines())["eval/reward"])


def run_trl(task: Task, python: Path) -> TrainingRun:
    """TRL's GRPOTrainer in the environment of `python`."""
    with tempfile.TemporaryDirectory(prefix="headrace-benchmark-") as name:
        folder = Path(name)
        write_task(task, "sync", folder)
        settings = {**asdict(task), "model": str(task.model), "rows_per_pass": task.trl_rows_per_pass}
        files = ["--rows", str(folder / ROWS), "--trained", str(folder / "trained")]
        command = [str(python), str(TRL_WORKER), *files, "--settings", json.dumps(settings)]
        versions, *steps = map(json.loads, run("TRL", command, steps=task.steps).splitlines())
        accuracy = accuracy_of(folder / "trained", task, folder)
    return TrainingRun(steps=[TrainedStep(**step) for step in steps], accuracy=accuracy, versions=versions)


def run(name: str, command: Sequence[str], *, steps: int) -> str:
    """Standard output of a process.

    Raises:
        PartDiedError: It failed; the message has the end of its log.
        StalledError: It took longer than `SECONDS_A_STEP` a step.
    """
    environment = {**peer_environment(), "HF_HUB_OFFLINE": "1"}
    limit = SECONDS_A_STEP * (steps + 1)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise StalledError(f"{name} did not train {steps} steps within {limit} s; give fewer steps or a smaller model") from error
    if done.returncode:
        raise PartDiedError(f"{name} ended with exit code {done.returncode}; its output ends with:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
