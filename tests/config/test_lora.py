import pytest
from config.recipes import recipe_with

from headrace.config.loading import parse_recipe
from headrace.config.lora import LoraSection, check_targets, count_adapter_parameters, linear_layers
from headrace.config.model_facts import ModelFacts
from headrace.config.plan import make_plan
from headrace.errors import RecipeError

MODEL = ModelFacts(
    num_parameters=1000,
    num_layers=1,
    hidden_size=8,
    intermediate_size=16,
    num_kv_heads=2,
    head_dim=4,
    max_positions=None,
    matrices={
        "model.embed_tokens": (50, 8),
        "model.layers.0.self_attn.q_proj": (8, 8),
        "model.layers.0.self_attn.v_proj": (4, 8),
        "model.layers.0.mlp.up_proj": (16, 8),
        "lm_head": (50, 8),
    },
)


def test_without_the_section_all_weights_learn() -> None:
    assert recipe_with().lora is None
    assert recipe_with(lora={}).lora == LoraSection(rank=16, alpha=32.0, target_modules="all-linear")


@pytest.mark.parametrize(
    ("targets", "features"),
    [("all-linear", 8 + 8 + 4 + 8 + 16 + 8), (["q_proj", "v_proj"], 8 + 8 + 4 + 8), (["mlp.up_proj"], 16 + 8), (["proj"], 0)],
)
def test_parameters_by_hand(targets: str | list[str], features: int) -> None:
    assert count_adapter_parameters(LoraSection(rank=3, target_modules=targets), MODEL) == 3 * features


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], ["mlp.up_proj"], ["model.layers.0.self_attn.q_proj"]])
def test_names_of_linear_layers_are_fine(targets: str | list[str]) -> None:
    check_targets(LoraSection(target_modules=targets), linear_layers(MODEL))


@pytest.mark.parametrize("target", ["query", "lm_head", "embed_tokens", "proj", "attn.q_proj"])
def test_a_name_that_is_no_layers_is_refused_with_those_that_are(target: str) -> None:
    with pytest.raises(RecipeError, match=rf"target_modules: {target} names no linear layer .* among these: q_proj, up_proj, v_proj$"):
        check_targets(LoraSection(target_modules=["q_proj", target]), linear_layers(MODEL))


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"target_modules: all-linear names no linear layer .* among these: none"):
        check_targets(LoraSection(), [])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rank": 0}, "lora.rank must be at least 1"),
        ({"alpha": 0}, "lora.alpha must be above 0"),
        ({"target_modules": []}, "lora.target_modules"),
        ({"target_modules": "q_proj"}, "lora.target_modules must be 'all-linear' or a list"),
        ({"dropout": 0.1}, "unknown key 'lora.dropout'"),
        ({"r": 8}, "lora.rank"),
        ({"lora_alpha": 8}, "lora.alpha"),
    ],
)
def test_what_cannot_be(section: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(recipe_with().model_dump() | {"lora": section}, origin="here")
    assert message in str(caught.value)


def test_memory_counts_gradients_and_moments_of_the_adapter_alone() -> None:
    plan = make_plan(recipe_with(lora={"rank": 3, "target_modules": ["q_proj"]}, algorithm={"beta": 0.1}), model=MODEL)
    assert plan.memory is not None
    parts = {part.name: part.num_bytes for part in plan.memory.parts}
    learning = 4 * 3 * (8 + 8)
    assert (parts["weights"], parts["adapter"], parts["gradients"], parts["AdamW"]) == (4000, learning, learning, 2 * learning)
    assert parts.keys() & {"cast weights", "reference copy"} == set()


def test_a_learning_rate_for_adapters_is_no_cause_for_a_warning() -> None:
    training = {"learning_rate": 5e-4}
    assert [warning for warning in make_plan(recipe_with(training=training)).warnings if "learning_rate" in warning]
    assert not make_plan(recipe_with(training=training, lora={})).warnings
