import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import WORDS, make_inputs, tiny_recipe
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headrace.errors import ModelError
from headrace.launch.critic import load_critic_backbone
from headrace.launch.model_loading import load_tokenizer


def load(folder: Path, critic: dict[str, object] | None, *, longest_sequence: int = 20) -> PreTrainedModel | None:
    algorithm = {"name": "grpo"} if critic is None else {"name": "ppo", "critic": critic}
    tokenizer: PreTrainedTokenizerBase = load_tokenizer(folder / "model")
    recipe = tiny_recipe(folder, algorithm=algorithm)
    return load_critic_backbone(recipe, tokenizer, longest_sequence=longest_sequence, device=torch.device("cpu"))


def test_a_head_needs_no_model(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    assert load(tmp_path, None) is None
    assert load(tmp_path, {}) is None


def test_the_output_layer_is_left_out(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    backbone = load(tmp_path, {"name_or_path": str(tmp_path / "model")})
    assert backbone is not None
    assert backbone.get_output_embeddings() is None
    whole = LlamaForCausalLM.from_pretrained(tmp_path / "model").model.state_dict()
    assert whole.keys() == backbone.state_dict().keys()
    assert all(torch.equal(whole[name], weight) and weight.dtype == torch.float32 for name, weight in backbone.state_dict().items())


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "critic")
    words = {word: number for number, word in enumerate(reversed(WORDS))}
    other = Tokenizer(models.WordLevel(words, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=other, eos_token="<end>").save_pretrained(tmp_path / "critic")
    with pytest.raises(ModelError, match="numbers its tokens in another way than"):
        load(tmp_path, {"name_or_path": str(tmp_path / "critic")})


def test_a_critic_with_fewer_positions_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "critic")
    config = LlamaConfig.from_pretrained(tmp_path / "critic")
    config.max_position_embeddings = 16
    config.save_pretrained(tmp_path / "critic")
    critic = {"name_or_path": str(tmp_path / "critic")}
    with pytest.raises(ModelError, match="end at 16, but a prompt and its completion may have 20 tokens"):
        load(tmp_path, critic)
    assert load(tmp_path, critic, longest_sequence=16) is not None


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    with pytest.raises(ModelError, match="there is no model 'nowhere'"):
        load(tmp_path, {"name_or_path": "nowhere"})
