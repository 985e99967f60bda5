"""The parts that each name stands for."""

from typing import Any, get_args

import pytest

from headrace.config.algorithm import AlgorithmSection, CriticSection
from headrace.config.named_algorithms import NAMED_ALGORITHMS, AlgorithmName

TYPES_OF = {
    # advantage, level, proximal, correction, surrogate, denominator
    "grpo": ("group", "token", "behaviour", "none", "clip", "sequences"),
    "dr_grpo": ("group", "token", "behaviour", "none", "clip", "constant"),
    "dapo": ("group", "token", "behaviour", "none", "clip", "tokens"),
    "gspo": ("group", "sequence", "behaviour", "none", "clip", "sequences"),
    "cispo": ("group", "token", "behaviour", "none", "cispo", "tokens"),
    "sapo": ("group", "token", "behaviour", "none", "sapo", "sequences"),
    "m2po": ("group", "token", "behaviour", "none", "m2po", "tokens"),
    "rloo": ("leave_one_out", "token", "behaviour", "none", "reinforce", "constant"),
    "reinforce_pp": ("whitened", "token", "behaviour", "none", "clip", "tokens"),
    "opo": ("length_weighted", "token", "behaviour", "none", "reinforce", "constant"),
    "ppo": ("gae", "token", "behaviour", "none", "clip", "tokens"),
    "areal": ("group", "token", "recompute", "mis", "clip", "tokens"),
    "a3po": ("group", "token", "loglinear", "mis", "clip", "tokens"),
    "distill": ("none", "token", "behaviour", "none", "importance", "tokens"),
}
OTHER_SETTINGS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"advantage": {"type": "group", "scale_rewards": "none", "ddof": 1, "scale_epsilon": 1e-4}},
    "dapo": {
        "surrogate": {"type": "clip", "epsilon": 0.2, "epsilon_high": 0.28, "delta": None},
        "dynamic_sampling": True,
        "overlong_buffer_share": 0.2,
    },
    "gspo": {"surrogate": {"type": "clip", "epsilon": 3e-4, "epsilon_high": 4e-4, "delta": None}},
    "cispo": {"surrogate": {"type": "cispo", "ratio_cap": 5.0}},
    "sapo": {"surrogate": {"type": "sapo", "tau_positive": 1.0, "tau_negative": 1.05}},
    "m2po": {"surrogate": {"type": "m2po", "threshold": 0.04}},
    "reinforce_pp": {"advantage": {"type": "whitened", "baseline": "none"}, "kl_in": "reward", "kl_estimator": "k1"},
    "ppo": {
        "advantage": {"type": "gae", "gamma": 1.0, "lam": 1.0},
        "critic": CriticSection().model_dump(),
    },
    "areal": {"correction": {"type": "mis", "level": "token", "low": 0.0, "high": 5.0}},
    "a3po": {"correction": {"type": "mis", "level": "token", "low": 0.0, "high": 5.0}},
    "distill": {"distillation_coefficient": 1.0},
}
NEUTRAL = AlgorithmSection().model_dump()


def algorithm(**settings: Any) -> AlgorithmSection:
    return AlgorithmSection.model_validate(settings)


def test_every_name_has_parts() -> None:
    assert set(get_args(AlgorithmName)) == set(NAMED_ALGORITHMS) == set(TYPES_OF)


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_a_named_algorithm_is_made_of_the_parts_that_its_source_describes(name: AlgorithmName) -> None:
    section = algorithm(name=name)
    types = (
        section.advantage.type,
        section.importance_sampling_level,
        section.proximal,
        section.correction.type,
        section.surrogate.type,
        section.denominator,
    )
    assert types == TYPES_OF[name]
    dumped = section.model_dump()
    assert {key: dumped[key] for key in OTHER_SETTINGS.get(name, {})} == OTHER_SETTINGS.get(name, {})


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_what_a_name_does_not_mention_is_as_without_it(name: AlgorithmName) -> None:
    dumped = algorithm(name=name).model_dump()
    untouched = dumped.keys() - {"name"} - NAMED_ALGORITHMS[name].settings.keys()
    assert {key: dumped[key] for key in untouched} == {key: NEUTRAL[key] for key in untouched}


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_a_name_that_is_dumped_with_all_its_keys_reads_the_same(name: AlgorithmName) -> None:
    section = algorithm(name=name)
    assert AlgorithmSection.model_validate(section.model_dump(exclude_none=True)) == section
