from pathlib import Path

import pytest
import torch
from rich.console import Console
from tiny_runs import make_inputs, tiny_recipe
from transformers import AutoModelForCausalLM

from headrace.config.recipe import Recipe
from headrace.data.rows import Row
from headrace.errors import RecipeError
from headrace.launch.policy import autocast_dtype, engine_copy, load_policy_and_prompts

QUIET = Console(quiet=True)
ROWS: list[Row] = [{"prompt": "what is 1 + 2 ?"}] * 10


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    make_inputs(tmp_path)
    return tiny_recipe(tmp_path)


def test_the_engines_copy_shares_nothing_and_keeps_rotary_frequencies_exact(recipe: Recipe, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    own = engine_copy(tiny_recipe(tmp_path, engine={"dtype": "bfloat16"}), model)
    assert {parameter.dtype for parameter in own.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in own.buffers()} == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    for mine, theirs in zip(own.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs.to(torch.bfloat16))
    same_type = engine_copy(recipe, model)
    next(same_type.parameters()).zero_()
    assert next(model.parameters()).any()


def test_lengths_come_from_the_prompts_and_the_model(recipe: Recipe, tmp_path: Path) -> None:
    assert load_policy_and_prompts(recipe, ROWS, console=QUIET).max_sequence_length == 6 + 8
    long = tiny_recipe(tmp_path, sampling={"max_completion_length": 100}, training={"token_budget": 200})
    assert load_policy_and_prompts(long, ROWS, console=QUIET).max_sequence_length == 64


def test_a_token_budget_below_the_longest_sample_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    recipe = tiny_recipe(tmp_path, training={"token_budget": 13})
    with pytest.raises(RecipeError, match=r"token_budget = 13 tokens, but a sample can have 14 .* set training.token_budget to 14 or more"):
        load_policy_and_prompts(recipe, ROWS, console=QUIET)


def test_arithmetic_of_the_forward_pass(recipe: Recipe, tmp_path: Path) -> None:
    assert autocast_dtype(recipe) is None
    assert autocast_dtype(tiny_recipe(tmp_path, training={"autocast": "bfloat16"})) is torch.bfloat16
