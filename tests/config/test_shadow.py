import re
from typing import Any

import pytest
from config.recipes import recipe_with

from headrace.config.loading import dump_recipe, load_recipe
from headrace.errors import RecipeError


def shadows(*algorithms: object, **sections: dict[str, Any]) -> dict[str, Any]:
    return recipe_with(shadow={"algorithms": list(algorithms)}, **sections).shadow_algorithms


def test_without_the_section_nothing_is_compared():
    assert recipe_with().shadow is None
    assert recipe_with().shadow_algorithms == {}


def test_shadows_take_over_what_makes_the_batch_and_nothing_else():
    applied = {"name": "areal", "num_generations": 4, "num_minibatches": 2, "mask_truncated_completions": True}
    found = shadows("grpo", {"name": "dapo", "label": "wide", "surrogate": {"epsilon_high": 0.5}}, algorithm=applied)
    assert list(found) == ["grpo", "wide"]
    for shadow in found.values():
        assert (shadow.num_generations, shadow.num_minibatches, shadow.dynamic_sampling) == (4, 2, False)
        assert not shadow.mask_truncated_completions
    assert (found["grpo"].proximal, found["grpo"].correction.type) == ("behaviour", "none")
    assert (found["wide"].surrogate.epsilon, found["wide"].surrogate.epsilon_high) == (0.2, 0.5)
    assert found["wide"].overlong_buffer_share == 0.2


def test_the_applied_algorithm_can_be_listed_too():
    assert list(shadows("grpo", "areal", algorithm={"name": "areal"})) == ["grpo", "areal"]


@pytest.mark.parametrize(
    ("algorithms", "sections", "message"),
    [
        (["grpo", "grpo"], {}, r"'grpo' comes more than once; give one of them another label"),
        ([{"name": "grpo", "label": "a b"}], {}, r"'a b' cannot be a label"),
        ([{"name": "grpo", "label": "applied"}], {}, r"'applied' cannot be a label"),
        ([{"name": "grpo", "num_generations": 4}], {}, r"'grpo': num_generations says what the batch is made of"),
        ([{"name": "grpo", "surrogate": {"epsilon": 2.0}}], {}, r"'grpo': surrogate\.clip\.epsilon: Input should be less than 1"),
        ([{"name": "grpo", "proximol": "recompute"}], {}, r"'grpo': proximol: Extra inputs are not permitted"),
        (["ppo"], {}, r"'ppo': its advantages come from a critic"),
        (["distill"], {}, r"'distill': it needs a teacher's log-probabilities"),
        ([{"name": "reinforce_pp", "beta": 0.1}], {}, r"it needs the initial policy's log-probabilities"),
        ([{"name": "grpo", "beta": 0.1}], {}, r"without their KL and entropy terms"),
        ([{"name": "grpo", "correction": {"type": "tis"}}], {}, r"'grpo': correction.type = 'tis' with proximal = 'behaviour'"),
        (["m2po"], {"schedule": {"type": "periodic"}}, r"'m2po': surrogate\.type = 'm2po' needs the whole batch"),
        (["reinforce_pp"], {"schedule": {"type": "async", "stream": True}}, r"advantage\.type = 'whitened' needs the whole batch"),
        (["rloo"], {"algorithm": {"name": "areal", "num_minibatches": 2}}, r"'rloo': surrogate\.type = 'reinforce'"),
    ],
)
def test_what_cannot_be_compared_is_refused(algorithms, sections, message):
    with pytest.raises(ValueError, match=message):
        shadows(*algorithms, **sections)


def test_needs_that_the_applied_algorithm_shares_are_met():
    teacher = {"type": "local", "name_or_path": "t"}
    assert "distill" in shadows("distill", algorithm={"name": "grpo", "distillation_coefficient": 0.1}, teacher=teacher)
    penalised = {"name": "reinforce_pp", "beta": 0.1}
    assert "reinforce_pp" in shadows(penalised, algorithm=penalised, schedule={"type": "sync"})
    assert "m2po" in shadows("m2po")


def write(folder, text):
    path = folder / "recipe.toml"
    path.write_text("[run]\noutput_dir = 'x'\n[model]\nname_or_path = 'm'\n[data]\nsource = {type = 'file', path = 'a.jsonl'}\n" + text)
    return path


def test_an_unknown_name_is_explained(tmp_path):
    path = write(tmp_path, "[shadow]\nalgorithms = ['grpo', 'grop']\n")
    with pytest.raises(RecipeError, match=r"shadow\.algorithms\.1 must be 'grpo', .* or a table \(given: \"grop\"\)") as caught:
        load_recipe(path)
    assert len(re.findall("must be", str(caught.value))) == 1


def test_a_resolved_recipe_can_be_read_again(tmp_path):
    path = write(tmp_path, "[shadow]\nalgorithms = ['grpo', {name = 'areal', correction = {type = 'tis'}}]\nnum_layers = 2\n")
    recipe = load_recipe(path)
    (tmp_path / "again.toml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe
