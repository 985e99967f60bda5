"""PPO with a critic, for real, under every schedule."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_runs import make_inputs, parameters, tiny_recipe
from transformers import AutoModelForCausalLM

from headrace.launch.run import RunResult, train

QUIET = Console(quiet=True)
METRICS = {"value_loss", "value_clip_ratio", "explained_variance", "values/mean", "returns/mean", "critic/grad_norm"}


def run(folder: Path, *, resume: bool = False, algorithm: dict[str, Any] | None = None, **sections: dict[str, Any]) -> RunResult:
    if not (folder / "model").exists():
        make_inputs(folder)
    algorithm = {"name": "ppo", "num_generations": 4, "critic": {"learning_rate": 1e-2}} | (algorithm or {})
    return train(tiny_recipe(folder, algorithm=algorithm, **sections), base_folder=folder, resume=resume, console=QUIET)


def steps_of(result: RunResult) -> list[dict[str, float]]:
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


def difference(first: RunResult, second: RunResult) -> float:
    """Largest difference of two trained models' parameters, relative to each tensor's largest value."""
    one, other = parameters(first.model_folder), parameters(second.model_folder)
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


def critic_difference(first: RunResult, second: RunResult, *, checkpoint: str = "checkpoint-5") -> float:
    """The same of their critics."""
    one, other = (torch.load(result.folder / checkpoint / "critic.pt")["parameters"] for result in (first, second))
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


@pytest.fixture(scope="module")
def sync_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tmp_path_factory.mktemp("sync"), schedule={"type": "sync"})


def test_every_step_reports_the_critic(sync_run: RunResult) -> None:
    steps = steps_of(sync_run)
    assert len(steps) == 5
    assert all(step.keys() >= METRICS for step in steps)
    assert steps[0]["values/mean"] == 0
    assert steps[-1]["values/mean"] > 0


def test_what_is_left_is_the_policy_alone(sync_run: RunResult) -> None:
    AutoModelForCausalLM.from_pretrained(sync_run.model_folder)
    assert not list(sync_run.model_folder.glob("*critic*"))
    assert (sync_run.folder / "checkpoint-5" / "critic.pt").is_file()


@pytest.mark.parametrize("schedule", [{"type": "periodic"}, {"type": "async", "max_staleness": 0}], ids=["periodic", "async-0"])
def test_on_policy_schedules_equal_sync(sync_run: RunResult, tmp_path: Path, schedule: dict[str, Any]) -> None:
    result = run(tmp_path, schedule=schedule)
    assert difference(sync_run, result) < 1e-6
    assert critic_difference(sync_run, result) < 1e-5


@pytest.mark.parametrize("own", [False, True], ids=["head", "backbone"])
def test_an_async_run_learns(tmp_path: Path, own: bool) -> None:
    make_inputs(tmp_path)
    critic = {"learning_rate": 1e-3, "name_or_path": str(tmp_path / "model")} if own else {"learning_rate": 1e-2}
    training = {"max_steps": 30, "learning_rate": 3e-3}
    result = run(tmp_path, schedule={"type": "async", "max_staleness": 1}, algorithm={"critic": critic}, training=training)
    rewards = [step["reward"] for step in steps_of(result)]
    assert sum(rewards[-5:]) > 3 * sum(rewards[:5])
    last = steps_of(result)[-1]
    assert last["values/mean"] == pytest.approx(last["returns/mean"], rel=0.3)


def test_several_updates_a_step_and_a_kl_penalty(tmp_path: Path) -> None:
    algorithm = {"num_minibatches": 2, "beta": 0.05, "kl_in": "reward", "kl_estimator": "k1", "advantage": {"lam": 0.95}}
    result = run(tmp_path, algorithm=algorithm, training={"max_steps": 4})
    assert all(step.keys() >= METRICS for step in steps_of(result))


def test_a_head_beside_an_adapter(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    result = run(tmp_path, lora={"rank": 4}, training={"max_steps": 3, "learning_rate": 1e-2})
    steps = steps_of(result)
    assert steps[-1]["values/mean"] != 0
    assert all(step["critic/grad_norm"] > 0 for step in steps)


def test_a_resumed_run_equals_an_uninterrupted_one(sync_run: RunResult, tmp_path: Path) -> None:
    run(tmp_path, training={"max_steps": 2})
    resumed = run(tmp_path, resume=True)
    assert resumed.summary["steps"] == 5
    assert difference(sync_run, resumed) == 0
    assert critic_difference(sync_run, resumed) == 0
