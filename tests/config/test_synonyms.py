"""Names from other libraries are told what they are called here, and what they are told exists."""

import re

import pytest
from pydantic import ValidationError

from headrace.config.problems import explain, keys_named
from headrace.config.recipe import Recipe
from headrace.config.synonyms import SYNONYMS


def test_the_exact_hint_of_a_name_that_trl_users_know() -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"training": {"per_device_train_batch_size": 8}})
    expected = (
        "unknown key 'training.per_device_train_batch_size'; here it is training.prompts_per_step, which counts prompts: a step takes "
        "prompts_per_step · num_generations completions"
    )
    assert expected in explain(caught.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gradient_accumulation_steps", "training.token_budget"),
        ("group_size", "algorithm.num_generations"),
        ("max_off_policy_steps", "schedule.max_staleness"),
        ("max_head_offpolicyness", "schedule.max_staleness"),
        ("max_lag", "schedule.max_staleness"),
        ("kl_coef", "algorithm.beta"),
        ("num_iterations", "algorithm.num_minibatches"),
        ("max_new_tokens", "sampling.max_completion_length"),
        ("loss_type", "algorithm.name"),
        ("adv_estimator", "algorithm.advantage.type"),
        ("clip_ratio_c", "algorithm.surrogate.delta"),
        ("rollout_is_threshold", "algorithm.correction"),
        ("lora_r", "lora.rank"),
    ],
)
def test_a_synonym_leads_to_its_key(name: str, key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({name: 1})
    (sentence,) = [sentence for sentence in explain(caught.value) if sentence.startswith("unknown key")]
    assert sentence.startswith(f"unknown key {name!r}; here it is {key}")


@pytest.mark.parametrize("name", SYNONYMS)
def test_every_key_that_a_hint_names_exists(name: str) -> None:
    named = re.findall(
        r"\b(?:algorithm|training|schedule|sampling|engine|evaluation|checkpoint|model|rewards|data|lora)\.[a-z_.]*[a-z_]", SYNONYMS[name]
    )
    assert named or "nothing to set" in SYNONYMS[name]
    for key in named:
        assert key in keys_named(key.rpartition(".")[2])


def test_no_synonym_hides_a_key_of_ours() -> None:
    assert [name for name in SYNONYMS if keys_named(name)] == []
