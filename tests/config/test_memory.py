"""Estimates by hand, for a model whose sizes are small primes or powers of two."""

from dataclasses import replace

from config.recipes import recipe_with

from headrace.config.memory import estimate_memory
from headrace.config.model_facts import ModelFacts

MODEL = ModelFacts(num_parameters=1000, num_layers=3, hidden_size=8, intermediate_size=16, num_kv_heads=2, head_dim=4, max_positions=None)
SMALL = {"data": {"source": {"type": "file", "path": "a"}, "max_prompt_length": 10}, "sampling": {"max_completion_length": 6}}


def bytes_of(**sections: dict[str, object]) -> dict[str, int]:
    estimate = estimate_memory(recipe_with(**SMALL | sections), MODEL)
    assert estimate.total_bytes == sum(part.num_bytes for part in estimate.parts)
    return {part.name: part.num_bytes for part in estimate.parts}


def test_every_part_by_hand() -> None:
    assert bytes_of(training={"token_budget": 100}, engine={"max_concurrent_sequences": 5}) == {
        "weights": 4000,
        "gradients": 4000,
        "AdamW": 8000,
        "activations": 100 * 3 * (10 * 8 + 4 * 16) * 4,
        "cast weights": 2000,
        "logits": 3 * 8 * 2**20,
        "engine's weights": 4000,
        "KV cache": 5 * 16 * (3 * 2 * 2 * 4) * 4,
    }


def test_float32_products_need_no_cast_weights() -> None:
    assert "cast weights" not in bytes_of(training={"autocast": "none"})


def test_a_kl_term_keeps_a_reference_copy() -> None:
    assert bytes_of(algorithm={"beta": 0.1})["reference copy"] == 4000


def test_the_engines_dtype_halves_its_share() -> None:
    full, half = bytes_of(), bytes_of(engine={"dtype": "bfloat16"})
    assert half["engine's weights"] * 2 == full["engine's weights"]
    assert half["KV cache"] * 2 == full["KV cache"]


def test_the_cache_never_counts_more_than_can_be_admitted() -> None:
    admitted = {"training": {"prompts_per_step": 2}, "algorithm": {"num_generations": 3}, "schedule": {"type": "sync"}}
    assert bytes_of(**admitted)["KV cache"] == 6 * 16 * 48 * 4


def test_checkpointing_keeps_one_layer_and_the_inputs_of_all() -> None:
    sections = {"training": {"token_budget": 100, "gradient_checkpointing": True}}
    assert bytes_of(**sections)["activations"] == 100 * (3 * 8 + 144) * 4


def test_a_critic_of_its_own_is_a_second_model_that_learns() -> None:
    recipe = recipe_with(**SMALL, training={"token_budget": 100}, algorithm={"name": "ppo", "critic": {"name_or_path": "other"}})
    critic = replace(MODEL, num_parameters=500, num_layers=2)
    parts = {part.name: part.num_bytes for part in estimate_memory(recipe, MODEL, critic=critic).parts}
    assert {name: size for name, size in parts.items() if name.startswith("critic's ")} == {
        "critic's weights": 2000,
        "critic's gradients": 2000,
        "critic's AdamW": 4000,
        "critic's cast weights": 1000,
        "critic's activations": 100 * 2 * (10 * 8 + 4 * 16) * 4,
    }
    assert not [name for name in bytes_of(algorithm={"name": "ppo"}) if "critic" in name]


def test_shadows_keep_gradients_of_the_last_layers_by_staleness() -> None:
    matrices = {"model.embed_tokens": (50, 2)} | {f"model.layers.{layer}.mlp": (3, 2) for layer in range(3)}
    recipe = recipe_with(**SMALL, shadow={"algorithms": ["grpo", "areal"], "num_layers": 2}, schedule={"type": "async", "max_staleness": 1})
    parts = {part.name: part.num_bytes for part in estimate_memory(recipe, replace(MODEL, matrices=matrices)).parts}
    assert parts["shadow gradients"] == (2 + 1) * (1 + 1) * (2 * 6) * 4
