import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from teacher_server import TeacherServer, running
from tiny_runs import make_inputs, tiny_recipe
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.config.recipe import Recipe
from headrace.data.rows import Row
from headrace.errors import ModelError, RecipeError
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


NOBODY = {"type": "server", "url": "http://127.0.0.1:9/v1", "max_attempts": 1}


@pytest.mark.parametrize(
    ("sections", "error", "words"),
    [
        ({}, ModelError, "has no weights for"),  # What is wrong with all of them, and is found last.
        ({"lora": {"target_modules": ["query"]}}, RecipeError, "lora.target_modules: query names no linear layer"),
        ({"teacher": {"type": "local", "name_or_path": "./gone"}}, ModelError, r"no model './gone'.*set teacher\.name_or_path to"),
        ({"teacher": {"type": "local", "name_or_path": "other"}}, ModelError, r"teacher\.name_or_path = 'other' has another vocabulary"),
        ({"teacher": NOBODY}, ModelError, r"the teacher at http://127\.0\.0\.1:9/v1/models gave no answer in 1 attempts: ConnectError"),
        ({"teacher": NOBODY | {"api_key_env": "NO_SUCH_KEY"}}, RecipeError, "no such environment variable"),
        ({"algorithm": {"name": "ppo", "critic": {"name_or_path": "./gone"}}}, ModelError, r"set algorithm\.critic\.name_or_path to"),
        ({"algorithm": {"name": "ppo", "critic": {"name_or_path": "other"}}}, ModelError, r"algorithm\.critic\..* another vocabulary"),
    ],
)
def test_what_can_be_refused_without_weights_is_refused_before_they_are_loaded(
    sections: dict[str, dict[str, Any]], error: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_inputs(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    tokenizer = tmp_path / "other" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"what"', '"who"'))
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.chdir(tmp_path)
    algorithm = {"algorithm": {"name": "distill"}} if "teacher" in sections else {}
    with pytest.raises(error, match=words):
        load_policy_and_prompts(tiny_recipe(tmp_path, **algorithm | sections), ROWS, console=QUIET)


def test_a_server_with_another_tokenizer_is_refused_before_weights_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make_inputs(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.add_tokens(["river"])
    tokenizer.save_pretrained(tmp_path / "model")
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    console = Console(file=io.StringIO(), width=200)
    with running(TeacherServer()) as server:
        recipe = tiny_recipe(tmp_path, algorithm={"name": "distill"}, teacher={"type": "server", "url": server.url})
        with pytest.raises(ModelError, match="the teacher reads a token as ' w16' that the policy's tokenizer writes as 'river'"):
            load_policy_and_prompts(recipe, ROWS, console=console)
        server.text = lambda token: tokenizer.decode([token])
        with pytest.raises(ModelError, match="has no weights for"):
            load_policy_and_prompts(recipe, ROWS, console=console)
    assert console.file.getvalue() == f"asking the teacher at {server.url}\n" * 2


def test_arithmetic_of_the_forward_pass(recipe: Recipe, tmp_path: Path) -> None:
    assert autocast_dtype(recipe) is None
    assert autocast_dtype(tiny_recipe(tmp_path, training={"autocast": "bfloat16"})) is torch.bfloat16
