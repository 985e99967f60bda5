import json
import shutil
from pathlib import Path

import pytest
import torch
from adapters import adapted
from tiny_runs import make_inputs
from transformers import AutoModelForCausalLM

from headrace.errors import ModelError
from headrace.launch.found_models import FoundModel, find_model
from headrace.training.checkpoint import save_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_inputs(tmp_path)
    return tmp_path / "model"


def find(path: Path, **settings: bool) -> FoundModel:
    return find_model(str(path), key="teacher.name_or_path", **settings)


def changed(folder: Path, **settings: object) -> Path:
    """A copy of a model folder with another configuration."""
    copy = folder.with_name("other")
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | settings))
    return copy


def test_no_weights_are_read_before_they_are_asked_for(folder: Path) -> None:
    found = find(folder)
    (folder / "model.safetensors").unlink()
    assert (found.path, found.adapter, found.config.vocab_size, len(found.tokenizer)) == (folder, None, 16, 16)
    with pytest.raises(ModelError, match="cannot be loaded"):
        found.load()


def test_it_loads_what_was_found(folder: Path) -> None:
    model, expected = find(folder).load(), AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def test_an_adapter_is_taken_only_where_it_may_be_one(folder: Path, tmp_path: Path) -> None:
    expected = adapted(AutoModelForCausalLM.from_pretrained(folder))
    save_policy(expected, tmp_path / "adapter")
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"base_model_name_or_path": str(folder)}))
    found = find(tmp_path / "adapter", may_be_adapter=True)
    assert (found.path, found.adapter) == (folder, tmp_path / "adapter")
    ids = torch.tensor([[3, 9, 1, 4]])
    torch.testing.assert_close(found.load()(ids).logits, expected(ids).logits, rtol=0, atol=0)
    with pytest.raises(ModelError, match=r"is an adapter, not a whole model; .* set teacher\.name_or_path to OUT"):
        find(tmp_path / "adapter")


def test_a_model_of_the_same_tokens_and_sizes_can_read(folder: Path) -> None:
    find(folder).check_reads(find(folder), longest_sequence=64)
    find(changed(folder, vocab_size=20)).check_reads(find(folder), longest_sequence=64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vocab_size": 15}, "knows token ids below 15, but the policy may sample any below 16"),
        ({"max_position_embeddings": 19}, r"has 19 positions, .* may have 20 tokens; lower data\.max_prompt_length"),
    ],
)
def test_a_model_that_is_too_small_cannot(settings: dict[str, object], words: str, folder: Path) -> None:
    with pytest.raises(ModelError, match=rf"teacher\.name_or_path = '.*other' {words}"):
        find(changed(folder, **settings)).check_reads(find(folder), longest_sequence=20)


def test_a_model_of_other_tokens_cannot(folder: Path) -> None:
    other = changed(folder)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"what"', '"who"'))
    with pytest.raises(ModelError, match=r"another vocabulary than the policy: 2 of 16 tokens differ, for instance 'what'"):
        find(other).check_reads(find(folder), longest_sequence=20)


def test_what_is_no_causal_language_model_is_refused_with_the_key(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"only causal language models .* set teacher\.name_or_path to one"):
        find(changed(folder, architectures=["T5ForConditionalGeneration"], model_type="t5"))
