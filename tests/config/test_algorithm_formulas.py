"""An algorithm's loss as a line of text."""

from typing import Any

import pytest

from headrace.config.algorithm import AlgorithmSection
from headrace.config.algorithm_formulas import batch_rules, division, loss_formula
from headrace.config.named_algorithms import NAMED_ALGORITHMS, AlgorithmName


def algorithm(**settings: Any) -> AlgorithmSection:
    return AlgorithmSection.model_validate(settings)


FORMULAS = [
    ({}, "grpo: Σ -min(r·A, clip(r, 0.8, 1.2)·A); r = π/π_behaviour, A = (R - group mean) / group std"),
    ({"name": "rloo"}, "rloo: Σ -A·log π; A = R - mean of the siblings'"),
    (
        {"name": "gspo"},
        "gspo: Σ -min(r·A, clip(r, 0.9997, 1.0004)·A); r = π/π_behaviour (geometric mean of the sequence), "
        "A = (R - group mean) / group std",
    ),
    ({"name": "distill"}, "distill: Σ -r·A; r = π/π_behaviour, A = -1·(log π_behaviour - log π_teacher)"),
    (
        {"distillation_coefficient": 0.5, "surrogate": {"delta": 3.0}},
        "grpo: Σ -min(r·A, clip(r, 0.8, 1.2)·A) with r ≤ 3 where A < 0; r = π/π_behaviour, "
        "A = (R - group mean) / group std - 0.5·(log π_behaviour - log π_teacher)",
    ),
    (
        {"name": "reinforce_pp", "beta": 0.1, "advantage": {"baseline": "group"}},
        "reinforce_pp: Σ -min(r·A, clip(r, 0.8, 1.2)·A); r = π/π_behaviour, A = R - β·KL - group mean, whitened over the batch's tokens",
    ),
    (
        {"name": "areal", "correction": {"level": "geometric"}, "beta": 0.1, "kl_estimator": "k2", "entropy_coefficient": 0.01},
        "areal: Σ -w·min(r·A, clip(r, 0.8, 1.2)·A) + 0.1·KL(π ‖ π_0) by k2 - 0.01·H(π); r = π/π_prox, "
        "w = π_prox/π_behaviour of each token, left out where the geometric mean of the sequence is outside [0, 5], "
        "π_prox by recompute, A = (R - group mean) / group std",
    ),
    (
        {"name": "cispo", "off_policy_mask_threshold": 0.5, "advantage": {"type": "pass_at_k"}},
        "cispo: Σ -sg(min(r, 5))·A·log π; r = π/π_behaviour, sequences with A < 0 left out where mean log(π_behaviour/π) > 0.5, "
        "A = (E[best of 4 with it] - E[best of 4]) / std",
    ),
]


@pytest.mark.parametrize(("settings", "formula"), FORMULAS)
def test_the_loss_as_a_line(settings: dict[str, Any], formula: str) -> None:
    assert loss_formula(algorithm(**settings)) == formula


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_every_loss_line_tells_its_name_and_its_advantage(name: AlgorithmName) -> None:
    formula = loss_formula(algorithm(name=name))
    assert formula.startswith(f"{name}: Σ -")
    assert " A = " in formula


@pytest.mark.parametrize(
    ("settings", "divided"),
    [
        ({}, "Σ of each completion's mean / completions of the batch"),
        ({"name": "rloo"}, "Σ / (completions of the batch · max_completion_length)"),
        ({"name": "areal"}, "Σ / completion tokens of the batch"),
    ],
)
def test_what_the_sum_is_divided_by(settings: dict[str, Any], divided: str) -> None:
    assert division(algorithm(**settings)) == divided


def test_what_is_done_with_groups_and_answers() -> None:
    assert batch_rules(algorithm()) == []
    assert batch_rules(algorithm(name="dapo")) == ["groups without signal are replaced", "overlong buffer of 20%"]
    assert batch_rules(algorithm(mask_truncated_completions=True)) == ["truncated completions are left out"]
