"""Combinations of parts that are refused, and their neighbours that are not."""

from typing import Any

import pytest
from config.recipes import recipe_with
from pydantic import ValidationError

from headrace.config.algorithm import AlgorithmSection
from headrace.config.algorithm_checks import ALGORITHM_CHECKS
from headrace.config.named_algorithms import NAMED_ALGORITHMS, AlgorithmName


def algorithm(**settings: Any) -> AlgorithmSection:
    return AlgorithmSection.model_validate(settings)


def complaints(settings: dict[str, Any]) -> list[str]:
    section = algorithm(**settings)
    return [problem for check in ALGORITHM_CHECKS if (problem := check(section))]


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_no_named_algorithm_is_refused(name: AlgorithmName) -> None:
    assert complaints({"name": name}) == []


REFUSED = [
    ({"num_generations": 1}, "algorithm.num_generations = 1, but advantage.type = 'group' compares siblings"),
    ({"name": "rloo", "num_generations": 1}, "advantage.type = 'leave_one_out' compares siblings"),
    ({"name": "opo", "num_generations": 1}, "advantage.type = 'length_weighted' compares siblings"),
    ({"advantage": {"type": "whitened", "baseline": "group"}, "num_generations": 1}, "advantage.type = 'whitened' compares siblings"),
    ({"advantage": {"type": "pass_at_k", "k": 8}}, "advantage.k = 8 with num_generations = 8"),
    ({"advantage": {"type": "pass_at_k"}, "num_generations": 4}, "advantage.k = 4 with num_generations = 4"),
    ({"name": "gspo", "surrogate": {"type": "cispo"}}, "importance_sampling_level = 'sequence' with surrogate.type = 'cispo'"),
    ({"name": "gspo", "surrogate": {"type": "reinforce"}}, "importance_sampling_level = 'sequence' with surrogate.type = 'reinforce'"),
    ({"name": "gspo", "surrogate": {"type": "m2po"}}, "importance_sampling_level = 'sequence' with surrogate.type = 'm2po'"),
    (
        {"name": "gspo", "surrogate": {"type": "python", "function": "a.py:f"}},
        "importance_sampling_level = 'sequence' with surrogate.type = 'python'",
    ),
    (
        {"name": "distill", "importance_sampling_level": "sequence"},
        "'sequence' with distillation_coefficient: all tokens of a sequence share",
    ),
    ({"name": "gspo", "distillation_coefficient": 1}, "importance_sampling_level = 'sequence' with distillation_coefficient"),
    ({"name": "ppo", "importance_sampling_level": "sequence"}, "importance_sampling_level = 'sequence' with advantage.type = 'gae'"),
    (
        {"name": "reinforce_pp", "beta": 0.1, "importance_sampling_level": "sequence"},
        "'sequence' with advantage.type = 'whitened' and beta in the reward",
    ),
    ({"correction": {"type": "tis"}}, "correction.type = 'tis' with proximal = 'behaviour'"),
    ({"name": "areal", "proximal": "behaviour"}, "correction.type = 'mis' with proximal = 'behaviour'"),
    ({"name": "areal", "correction": {"low": 1.0}}, "correction.low = 1 and high = 5 leave out the weight 1"),
    ({"name": "areal", "correction": {"type": "icepop", "high": 0.9}}, "correction.low = 0.5 and high = 0.9 leave out the weight 1"),
    ({"name": "areal", "correction": {"type": "tis", "high": 1.0}}, "correction.low = 0 and high = 1 leave out the weight 1"),
    ({"name": "sapo", "proximal": "recompute"}, "surrogate.type = 'sapo' bounds the distance to the policy that sampled by itself"),
    ({"name": "m2po", "proximal": "recompute"}, "surrogate.type = 'm2po' bounds the distance to the policy that sampled by itself"),
    ({"name": "a3po", "correction": {"type": "none"}}, "proximal = 'loglinear' with correction.type = 'none'"),
    (
        {"name": "rloo", "proximal": "loglinear", "correction": {"type": "mis"}},
        "proximal = 'loglinear' with surrogate.type = 'reinforce', which has no ratio",
    ),
    ({"name": "opo", "proximal": "recompute"}, "surrogate.type = 'reinforce' and correction.type = 'none': neither ratio nor weight"),
    ({"advantage": {"type": "gae"}}, "advantage.type = 'gae' needs the values of a critic"),
    ({"critic": {}}, "algorithm.critic is given, but advantage.type = 'group' has no use for values"),
    ({"name": "ppo", "distillation_coefficient": 0.5}, "what a teacher thinks of a token is an advantage, but a critic would take it for"),
    ({"name": "ppo", "distillation_coefficient": 0.5}, "distillation_coefficient = 0.5 with advantage.type = 'gae'"),
    ({"beta": 0.1, "kl_estimator": "k1"}, "kl_estimator = 'k1' with kl_in = 'loss': the expected gradient of k1 is zero"),
    ({"beta": 0.1, "kl_estimator": "unbiased", "kl_in": "reward"}, "kl_estimator = 'unbiased' with kl_in = 'reward'"),
    ({"advantage": {"type": "none"}}, "advantage.type = 'none' and distillation_coefficient = 0 leave nothing to learn from"),
    ({"name": "distill", "overlong_buffer_share": 0.2}, "overlong_buffer_share would do nothing with advantage.type = 'none'"),
    (
        {"name": "distill", "beta": 0.1, "kl_in": "reward", "mask_truncated_completions": True},
        "beta with kl_in = 'reward' and mask_truncated_completions would do nothing with advantage.type = 'none'",
    ),
    ({"name": "ppo", "dynamic_sampling": True}, "with advantage.type = 'gae' these may have a signal"),
    ({"name": "reinforce_pp", "dynamic_sampling": True}, "with advantage.type = 'whitened' these may have a signal"),
    ({"name": "dapo", "distillation_coefficient": 0.1}, "but with distillation_coefficient these may have a signal"),
    ({"name": "dapo", "beta": 0.1, "kl_in": "reward"}, "but with beta in the reward these may have a signal"),
    (
        {"name": "dapo", "advantage": {"type": "python", "function": "a.py:f", "needs_batch": True}},
        "with advantage.type = 'python' these may have a signal",
    ),
    ({"name": "rloo", "num_minibatches": 2}, "surrogate.type = 'reinforce' does not see that the policy moves between"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_combinations_without_a_meaning_are_refused_with_the_reason(settings: dict[str, Any], reason: str) -> None:
    [found] = complaints(settings)
    assert reason in found
    assert "; " in found  # the reason, then what to set
    with pytest.raises(ValidationError, match="Value error"):
        recipe_with(algorithm=settings)


def test_every_check_refuses_something() -> None:
    sections = [algorithm(**settings) for settings, _ in REFUSED]
    assert all(any(check(section) for section in sections) for check in ALGORITHM_CHECKS)


NEIGHBOURS: list[dict[str, Any]] = [
    {"num_generations": 2},
    {"advantage": {"type": "whitened"}, "num_generations": 1},
    {"name": "ppo", "num_generations": 1},
    {"advantage": {"type": "pass_at_k", "k": 7}},
    {"name": "gspo", "surrogate": {"type": "sapo"}},
    {"name": "gspo", "surrogate": {"type": "importance"}},
    {"name": "areal", "correction": {"low": 0.99}},
    {"name": "areal", "correction": {"type": "none"}},
    {"name": "cispo", "proximal": "recompute", "correction": {"type": "tis"}},
    {"beta": 0.1, "kl_estimator": "k1", "kl_in": "reward"},
    {"kl_estimator": "k1"},
    {"beta": 0.1, "kl_estimator": "unbiased"},
    {"advantage": {"type": "whitened", "baseline": "group"}, "dynamic_sampling": True},
    {"name": "distill", "advantage": {"type": "group"}},
    {"name": "reinforce_pp", "importance_sampling_level": "sequence"},
    {"name": "gspo", "beta": 0.1, "kl_in": "reward"},
    {"name": "rloo", "proximal": "recompute", "correction": {"type": "tis"}},
    {"name": "dapo", "beta": 0.1},
    {"name": "dapo", "advantage": {"type": "python", "function": "a.py:f"}},
    {"name": "rloo", "surrogate": {"type": "importance"}, "num_minibatches": 2},
]


@pytest.mark.parametrize("settings", NEIGHBOURS)
def test_their_neighbours_are_accepted(settings: dict[str, Any]) -> None:
    assert complaints(settings) == []
