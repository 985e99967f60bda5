"""Whole runs that train an adapter."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_runs import make_inputs, parameters, tiny_recipe
from training.policies import relative_gap
from transformers import AutoModelForCausalLM

from headrace.launch.export import export
from headrace.launch.run import RunResult, evaluate, train

QUIET = Console(quiet=True)
LORA = {"rank": 4, "alpha": 8.0}
SCHEDULES: dict[str, dict[str, Any]] = {
    "sync": {"type": "sync"},
    "periodic": {"type": "periodic"},
    "recompute": {"type": "async", "max_staleness": 2},
    "continue": {"type": "async", "max_staleness": 2, "interruption": "continue"},
    "finish": {"type": "async", "max_staleness": 2, "interruption": "finish"},
}


def make_base(folder: Path) -> None:
    """A random output layer that stays as it is must be large, or no hidden state could make a token likely."""
    make_inputs(folder)
    weights = {name: tensor.clone() for name, tensor in parameters(folder / "model").items()}
    weights["lm_head.weight"] *= 8
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})


def run(folder: Path, *, resume: bool = False, **sections: dict[str, Any]) -> RunResult:
    make_base(folder)
    sections.setdefault("lora", LORA)
    return train(tiny_recipe(folder, **sections), base_folder=folder, resume=resume, console=QUIET)


def metrics(result: RunResult) -> list[dict[str, float]]:
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule_learns(schedule: dict[str, Any], tmp_path: Path) -> None:
    result = run(tmp_path, schedule=schedule, training={"max_steps": 30, "learning_rate": 2e-2}, algorithm={"beta": 0.001})
    rewards = [step["reward"] for step in metrics(result)]
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5])
    assert metrics(result)[-1]["kl"] > 0
    if schedule["type"] != "async":
        assert max(step["mismatch_kl"] for step in metrics(result)) < 1e-9
    assert {file.name for file in result.model_folder.glob("*.safetensors")} == {"adapter_model.safetensors"}


def test_periodic_equals_sync_and_a_resumed_run_an_uninterrupted_one(tmp_path: Path) -> None:
    straight = run(tmp_path / "sync", schedule={"type": "sync"}, training={"max_steps": 4})
    periodic = run(tmp_path / "periodic", schedule={"type": "periodic"}, training={"max_steps": 4})
    run(tmp_path / "resumed", schedule={"type": "sync"}, training={"max_steps": 2})
    resumed = run(tmp_path / "resumed", schedule={"type": "sync"}, training={"max_steps": 4}, resume=True)
    wanted, one, other = (load_file(result.model_folder / "adapter_model.safetensors") for result in (straight, periodic, resumed))
    # Equal but for rounding: what is decoded together depends on time, and products of other numbers of rows round in other ways.
    assert max(relative_gap(wanted, one), relative_gap(wanted, other)) < 1e-5


def test_the_result_is_evaluated_and_exported(tmp_path: Path) -> None:
    data = {"held_out": 4}
    result = run(tmp_path, training={"max_steps": 3, "learning_rate": 1e-2}, data=data)
    recipe = tiny_recipe(tmp_path, data=data, lora=LORA)
    export(result.folder, tmp_path / "exported")
    merged, base = parameters(tmp_path / "exported"), parameters(tmp_path / "model")
    changed = {name for name in base if not torch.equal(merged[name], base[name])}
    assert changed == {name for name in base if "_proj" in name}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    scores = [
        evaluate(recipe, base_folder=tmp_path, model_folder=folder).metrics for folder in (result.model_folder, tmp_path / "exported")
    ]
    assert scores[0] == scores[1]
