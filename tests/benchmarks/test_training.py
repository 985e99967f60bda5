import json
import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM


def run_training(arguments: Sequence[str]) -> None:
    """By its path: `training` is the name of a folder of tests, too."""
    runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "training.py"))["main"](arguments)


def test_measures_every_section(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--runs", "1", "--threads", "1", "--prompt-lengths", "5", "--memory-groups", "2"]
    run_training(["--model", str(model_folder), *small])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for section in (result["quickstart"], *result["prompts"]):
        rates = section["tokens_per_second"]
        assert section["ratio"] == pytest.approx(rates["headrace"] / rates["padded"], rel=1e-3)
    assert [section["prompt"] for section in result["prompts"]] == [5]
    assert set(result["proximal"]["seconds_per_step"]) == {"behaviour", "recompute", "loglinear"}
    assert [size["groups"] for size in result["memory"]] == [2]
    assert all(size["peak_mib"] > 50 for size in result["memory"])
    assert set(result["publish"]["seconds_per_publish"]) == {"publish", "copy", "packing"}


def test_sections_can_be_chosen(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_training(["--model", str(model_folder), "--only", "publish", "--runs", "1", "--threads", "1", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    assert set(json.loads(line)) == {"benchmark", "publish", "settings", "machine"}


def test_both_sides_compute_the_same_gradient(model_folder: Path) -> None:
    """In float32, with several passes on both sides."""
    from grouped_samples import grouped_rows, micro_batches
    from padded_loop import accumulate_padded
    from policy_trainers import policy_trainer

    rows = grouped_rows(groups=3, rollouts=2, prompt_length=7, shortest=2, longest=9, vocabulary=16)
    plain, policy = (AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32) for _ in range(2))
    accumulate_padded(plain, rows, token_budget=40, autocast_dtype=None)
    trainer = policy_trainer(policy, token_budget=40, autocast_dtype=None)
    for micro_batch in micro_batches(rows, version=0, token_budget=40):
        trainer.accumulate(micro_batch)
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    found = {name: parameter.grad for name, parameter in policy.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2


def test_padded_passes_keep_to_the_budget() -> None:
    from grouped_samples import grouped_rows
    from padded_loop import passes

    rows = grouped_rows(groups=4, rollouts=4, prompt_length=5, shortest=1, longest=12, vocabulary=16)
    sequences = [(row.prompt_ids, sample) for row in rows for sample in row.samples]
    found = list(passes(sequences, 40))
    assert sorted(len(sample.completion_ids) for part in found for _, sample in part) == sorted(
        len(sample.completion_ids) for _, sample in sequences
    )
    assert all(len(part) * (5 + max(len(sample.completion_ids) for _, sample in part)) <= 40 for part in found)


def test_cost_of_sharing_a_prompt_by_hand() -> None:
    from prompt_sharing import ModelCost, predicted_speedup

    lengths = {"prompt": 2, "completion": 1, "completions": 3}
    # Tokens: 3 · 3 against 2 + 3. Pairs: 3 · (1 + 2 + 3) against (1 + 2) + 3 · 3. Scored: 3 on both sides.
    assert predicted_speedup(ModelCost(token=1, pair=0, scored=0), **lengths) == 9 / 5
    assert predicted_speedup(ModelCost(token=0, pair=1, scored=0), **lengths) == 18 / 12
    assert predicted_speedup(ModelCost(token=2, pair=1, scored=4), **lengths) == (18 + 18 + 12) / (10 + 12 + 12)


def test_costs_of_a_model_are_its_weights(model_folder: Path) -> None:
    from prompt_sharing import model_cost

    cost = model_cost(AutoModelForCausalLM.from_pretrained(model_folder))
    assert cost.token == 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64)
    assert (cost.pair, cost.scored) == (2 * 2 * 32, 32 * 16)
