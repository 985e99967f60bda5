"""What may be changed of a named algorithm, and what follows from an algorithm's parts."""

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config.algorithm import AlgorithmSection, CriticSection


def algorithm(**settings: Any) -> AlgorithmSection:
    return AlgorithmSection.model_validate(settings)


MERGED = [
    ({"name": "dapo", "surrogate": {"epsilon": 0.1}}, "surrogate", {"type": "clip", "epsilon": 0.1, "epsilon_high": 0.28, "delta": None}),
    (
        {"name": "dapo", "surrogate": {"type": "clip", "delta": 3.0}},
        "surrogate",
        {"type": "clip", "epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0},
    ),
    ({"name": "dapo", "surrogate": {"type": "cispo"}}, "surrogate", {"type": "cispo", "ratio_cap": 5.0}),
    ({"name": "gspo", "surrogate": {"type": "sapo"}}, "surrogate", {"type": "sapo", "tau_positive": 1.0, "tau_negative": 1.05}),
    ({"name": "cispo", "surrogate": {"type": "clip"}}, "surrogate", {"type": "clip", "epsilon": 0.2, "epsilon_high": None, "delta": None}),
    ({"name": "cispo", "surrogate": {"ratio_cap": 2.0}}, "surrogate", {"type": "cispo", "ratio_cap": 2.0}),
    ({"surrogate": {"epsilon": 0.1}}, "surrogate", {"type": "clip", "epsilon": 0.1, "epsilon_high": None, "delta": None}),
    ({"advantage": {"ddof": 0}}, "advantage", {"type": "group", "scale_rewards": "group", "ddof": 0, "scale_epsilon": 1e-4}),
    (
        {"name": "dr_grpo", "advantage": {"ddof": 0}},
        "advantage",
        {"type": "group", "scale_rewards": "none", "ddof": 0, "scale_epsilon": 1e-4},
    ),
    ({"name": "areal", "correction": {"high": 2.0}}, "correction", {"type": "mis", "level": "token", "low": 0.0, "high": 2.0}),
    ({"name": "areal", "correction": {"type": "icepop"}}, "correction", {"type": "icepop", "low": 0.5, "high": 5.0}),
    ({"name": "areal", "correction": {"type": "none"}}, "correction", {"type": "none"}),
    ({"name": "ppo", "critic": {"value_clip": 0.5}}, "critic", CriticSection(value_clip=0.5).model_dump()),
    ({"name": "dapo", "dynamic_sampling": False}, "dynamic_sampling", False),
]


@pytest.mark.parametrize(("settings", "key", "expected"), MERGED)
def test_a_table_of_the_same_type_changes_keys_and_one_of_another_replaces_it(settings: dict[str, Any], key: str, expected: Any) -> None:
    assert algorithm(**settings).model_dump()[key] == expected


@pytest.mark.parametrize("name", ["GRPO", 3, None, ["grpo"], {"a": 1}])
def test_names_that_do_not_exist(name: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        algorithm(name=name)
    assert {problem["loc"] for problem in caught.value.errors()} == {("name",)}


@pytest.mark.parametrize(("epsilon_high", "expected"), [(None, 0.1), (0.3, 0.3)])
def test_the_upper_clip_is_the_lower_one_unless_it_is_set(epsilon_high: float | None, expected: float) -> None:
    section = algorithm(surrogate={"epsilon": 0.1, "epsilon_high": epsilon_high})
    assert section.surrogate.type == "clip"
    assert section.surrogate.clip_high == expected


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({}, None),
        ({"advantage": {"scale_rewards": "batch"}}, "advantage.scale_rewards = 'batch'"),
        ({"name": "reinforce_pp"}, "advantage.type = 'whitened'"),
        ({"name": "m2po"}, "surrogate.type = 'm2po'"),
        ({"advantage": {"type": "python", "function": "a.py:f"}}, None),
        ({"advantage": {"type": "python", "function": "a.py:f", "needs_batch": True}}, "advantage.needs_batch = true"),
    ],
)
def test_the_setting_that_needs_the_whole_batch(settings: dict[str, Any], setting: str | None) -> None:
    assert algorithm(**settings).needs_batch == setting


@pytest.mark.parametrize(
    ("settings", "min_scored"),
    [({}, 2), ({"name": "reinforce_pp"}, 1), ({"name": "ppo"}, 1), ({"name": "distill"}, 0), ({"name": "rloo"}, 2)],
)
def test_how_many_rewards_a_group_needs(settings: dict[str, Any], min_scored: int) -> None:
    assert algorithm(**settings).min_scored_rollouts == min_scored


@pytest.mark.parametrize(
    ("settings", "in_loss", "in_reward"),
    [
        ({}, False, False),
        ({"beta": 0.1}, True, False),
        ({"beta": 0.1, "kl_in": "reward"}, False, True),
        ({"kl_in": "reward"}, False, False),
    ],
)
def test_where_the_kl_term_is(settings: dict[str, Any], in_loss: bool, in_reward: bool) -> None:
    section = algorithm(**settings)
    assert (section.has_kl_loss, section.penalises_rewards) == (in_loss, in_reward)
