"""Every named algorithm trains, for real."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tiny_runs import make_inputs, parameters, tiny_recipe

from headrace.config.named_algorithms import NAMED_ALGORITHMS
from headrace.launch.run import train

WITHOUT_A_TEACHER = sorted(NAMED_ALGORITHMS.keys() - {"distill"})


@pytest.mark.parametrize("name", WITHOUT_A_TEACHER)
def test_every_named_algorithm_trains(tmp_path: Path, name: str) -> None:
    make_inputs(tmp_path)
    recipe = tiny_recipe(tmp_path, algorithm={"name": name}, training={"max_steps": 2})
    result = train(recipe, base_folder=tmp_path, console=Console(quiet=True))
    assert (result.summary["steps"], result.summary["finished"], result.summary["skipped_updates"]) == (2, True, 0)
    before, after = parameters(tmp_path / "model"), parameters(result.model_folder)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after.values())
    assert any(not torch.equal(before[key], after[key]) for key in before)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["grad_norm"] > 0 for row in rows)


def test_a_surrogate_and_an_advantage_of_the_users_own(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def losses(ratio, logprobs, advantages):\n    return -ratio * advantages\n\n"
        "def centred(group):\n"
        "    present = [reward for reward in group if reward is not None]\n"
        "    return [None if reward is None else reward - sum(present) / len(present) for reward in group]\n\n"
        "def advantages(rewards, lengths):\n    return [centred(group) for group in rewards]\n"
    )
    plain = {"name": "dr_grpo", "surrogate": {"type": "importance"}}
    own = {
        "name": "dr_grpo",
        "surrogate": {"type": "python", "function": "mine.py:losses"},
        "advantage": {"type": "python", "function": "mine.py:advantages"},
    }
    found = []
    for number, algorithm in enumerate((plain, own)):
        run = {"output_dir": str(tmp_path / f"run-{number}")}
        recipe = tiny_recipe(tmp_path, algorithm=algorithm, run=run, training={"max_steps": 2})
        found.append(parameters(train(recipe, base_folder=tmp_path, console=Console(quiet=True)).model_folder))
    for key, tensor in found[0].items():
        torch.testing.assert_close(found[1][key], tensor, rtol=1e-4, atol=1e-6)
