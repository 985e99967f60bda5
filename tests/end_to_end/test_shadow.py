"""Algorithms compared in whole runs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny_runs import make_inputs, tiny_recipe
from training.policies import relative_gap

from headrace.launch.run import RunResult, train

SHADOWS = ["grpo", "areal", "m2po", {"name": "dapo", "overlong_buffer_share": 0.5}]


def run(folder: Path, console: Console | None = None, **sections: dict[str, Any]) -> RunResult:
    make_inputs(folder)
    training = {"max_steps": 4} | sections.pop("training", {})
    return train(tiny_recipe(folder, training=training, **sections), base_folder=folder, console=console or Console(quiet=True))


def steps_of(result: RunResult) -> list[dict[str, float]]:
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "reward" in line]


def test_an_asynchronous_run_says_what_others_would_have_made_of_its_batches(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    algorithm = {"name": "a3po", "num_generations": 4}
    result = run(
        tmp_path,
        console,
        schedule={"type": "async", "max_staleness": 1, "slots": 6},
        engine={"max_concurrent_sequences": 32},
        algorithm=algorithm,
        shadow={"algorithms": SHADOWS, "num_layers": 2},
    )
    labels = {"applied", "grpo", "areal", "m2po", "dapo"}
    for step in steps_of(result):
        assert step["shadow/applied/gradient_cosine"] == pytest.approx(1, abs=1e-6)
        assert {name.split("/")[1] for name in step if name.startswith("shadow/")} == labels
        assert all(0 < step[f"shadow/{label}/ess"] <= 1 + 1e-9 for label in labels)
    # Punishing long answers changes advantages, not only their size.
    assert result.summary["shadow"]["dapo"]["gradient_cosine"] < 0.999
    # Six groups are admitted at version 0, of which the first step takes four and the second one two, beside two of version 1.
    assert any("/staleness_" in name for step in steps_of(result) for name in step)
    assert "what other algorithms would have made of the same batches" in console.file.getvalue()


def weights(result: RunResult) -> dict[str, torch.Tensor]:
    """Of the trained model or adapter."""
    [file] = result.model_folder.glob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize(
    ("shadows", "sections"),
    [
        (SHADOWS, {}),
        (["grpo", "areal"], {"schedule": {"type": "periodic"}, "lora": {"rank": 2, "alpha": 4}, "training": {"learning_rate": 1e-2}}),
        (["grpo", "areal"], {"algorithm": {"name": "ppo", "num_generations": 4, "num_minibatches": 2}}),
    ],
    ids=["sync", "periodic with an adapter", "with a critic"],
)
def test_a_run_trains_the_same_with_shadows(shadows: list[Any], sections: dict[str, Any], tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", **sections)
    compared = run(tmp_path / "compared", shadow={"algorithms": shadows}, **sections)
    assert "areal" in compared.summary["shadow"]
    assert relative_gap(weights(plain), weights(compared)) < 1e-5
    for step, wanted in zip(steps_of(compared), steps_of(plain), strict=True):
        for name in ("loss", "grad_norm", "reward"):
            assert step[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-6)


def test_truncated_completions_that_only_a_shadow_trains_on_are_compared(tmp_path: Path) -> None:
    algorithm = {"name": "grpo", "num_generations": 4, "mask_truncated_completions": True}
    result = run(tmp_path, algorithm=algorithm, shadow={"algorithms": [{"name": "grpo", "label": "unmasked"}]})
    assert result.summary["shadow"]["unmasked"]["gradient_cosine"] < 0.999
