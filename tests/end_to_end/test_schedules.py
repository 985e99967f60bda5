"""The same recipe under every schedule, for real: threads, processes, a model that learns."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_runs import make_inputs, parameters, tiny_recipe, trained_prompts
from transformers import AutoModelForCausalLM

from headrace.cli.check import check_recipe
from headrace.launch.run import RunResult, train

QUIET = Console(quiet=True)


def run(folder: Path, *, shuffle: int = 0, **sections: dict[str, Any]) -> RunResult:
    make_inputs(folder, shuffle=shuffle)
    rewards = {"functions": [{"type": "python", "function": f"{folder / 'rewards.py'}:slowly"}], "num_workers": 3}
    return train(tiny_recipe(folder, rewards=rewards, **sections), base_folder=folder, console=QUIET)


def difference(first: Path, second: Path) -> float:
    """Largest difference of two models' parameters, relative to each tensor's largest value."""
    one, other = parameters(first), parameters(second)
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


@pytest.fixture(scope="module")
def sync_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tmp_path_factory.mktemp("sync"), schedule={"type": "sync"})


def test_training_moves_the_weights(sync_run: RunResult, tmp_path: Path) -> None:
    """Otherwise the equalities below would say nothing."""
    make_inputs(tmp_path)
    assert difference(tmp_path / "model", sync_run.model_folder) > 1e-2


@pytest.mark.parametrize("shuffle", [1, 2, 3])
@pytest.mark.parametrize("schedule", [{"type": "periodic"}, {"type": "async", "max_staleness": 0}], ids=["periodic", "async-0"])
def test_on_policy_schedules_equal_sync_whatever_the_order_of_arrival(
    sync_run: RunResult, tmp_path: Path, schedule: dict[str, Any], shuffle: int
) -> None:
    result = run(tmp_path, shuffle=shuffle, schedule=schedule)
    assert trained_prompts(result.folder) == trained_prompts(sync_run.folder)
    assert difference(sync_run.model_folder, result.model_folder) < 1e-6


@pytest.mark.parametrize("interruption", ["recompute", "continue", "finish"])
@pytest.mark.parametrize("order", ["deadline", "completion"])
def test_an_async_run_learns_and_keeps_its_promises(tmp_path: Path, interruption: str, order: str) -> None:
    schedule = {"type": "async", "max_staleness": 2, "interruption": interruption, "order": order}
    algorithm = {"name": "a3po"}
    result = run(tmp_path, schedule=schedule, algorithm=algorithm, training={"max_steps": 30, "learning_rate": 3e-3})
    rewards = [json.loads(line)["reward"] for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(rewards[-5:]) > 3 * sum(rewards[:5])
    assert result.summary["steps"] == 30
    assert result.summary["mean_staleness"] > 0
    if order == "deadline":
        assert result.summary["worst_staleness"] <= 2
    ledger = result.summary["ledger"]
    assert (ledger["trained"], ledger["in_flight"], ledger["ready"]) == (120, 0, 0)


def test_the_run_folder_has_what_it_promises(sync_run: RunResult) -> None:
    names = {path.name for path in sync_run.folder.iterdir() if not path.name.startswith(".")}
    assert names == {"recipe.toml", "events.jsonl", "metrics.jsonl", "samples", "curves.png", "summary.json", "checkpoint-5", "final"}
    for folder in (sync_run.model_folder, sync_run.folder / "checkpoint-5"):
        AutoModelForCausalLM.from_pretrained(folder)
        assert (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize("type_of_schedule", ["sync", "periodic", "async"])
def test_a_run_told_in_epochs_makes_the_steps_that_checking_it_promised(tmp_path: Path, type_of_schedule: str) -> None:
    """9 prompts three times, 4 a step: the last one has 3 of them."""
    sections = {
        "schedule": {"type": type_of_schedule},
        "data": {"held_out": 3},
        "training": {"max_steps": None, "num_train_epochs": 3, "lr_scheduler": "linear", "learning_rate": 1e-3},
    }
    result = run(tmp_path, **sections)
    plan, _ = check_recipe(tiny_recipe(tmp_path, **sections), base_folder=tmp_path)
    assert (plan.steps, plan.prompts_of_last_step) == (7, 3)
    trained = trained_prompts(result.folder)
    assert [sum(step == number for step, _, _ in trained) for number in range(1, 8)] == [4, 4, 4, 4, 4, 4, 3]
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates == pytest.approx([1e-3 * (7 - update) / 7 for update in range(7)])


def test_engine_and_trainer_agree_on_every_fresh_token(sync_run: RunResult) -> None:
    for line in (sync_run.folder / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["mismatch_kl"] < 1e-9


@pytest.mark.parametrize("name", ["grpo", "areal", "a3po"])
def test_every_proximal_policy_trains_with_minibatches_and_a_reference(tmp_path: Path, name: str) -> None:
    algorithm = {"name": name, "num_minibatches": 2, "beta": 0.01, "entropy_coefficient": 0.001}
    result = run(tmp_path, schedule={"type": "async", "max_staleness": 1}, algorithm=algorithm)
    last = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["kl"] > 0
    assert result.summary["skipped_updates"] == 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in parameters(result.model_folder).values())
