import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import make_inputs, tiny_recipe
from transformers import LlamaForCausalLM

from headrace.errors import ModelError
from headrace.launch.critic import find_critic, load_backbone
from headrace.launch.found_models import FoundModel, find_model


def find(folder: Path, critic: dict[str, object] | None) -> FoundModel | None:
    algorithm = {"name": "grpo"} if critic is None else {"name": "ppo", "critic": critic}
    policy = find_model(str(folder / "model"), key="model.name_or_path")
    return find_critic(tiny_recipe(folder, algorithm=algorithm), policy, longest_sequence=20)


def test_a_head_needs_no_model(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    assert find(tmp_path, None) is None
    assert find(tmp_path, {}) is None


def test_the_output_layer_is_left_out(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    found = find(tmp_path, {"name_or_path": str(tmp_path / "model")})
    assert found is not None
    backbone = load_backbone(found)
    assert backbone.get_output_embeddings() is None
    whole = LlamaForCausalLM.from_pretrained(tmp_path / "model").model.state_dict()
    assert whole.keys() == backbone.state_dict().keys()
    assert all(torch.equal(whole[name], weight) and weight.dtype == torch.float32 for name, weight in backbone.state_dict().items())


def test_a_critic_that_cannot_read_what_the_policy_writes_is_refused(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "critic")
    tokenizer = tmp_path / "critic" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"what"', '"who"'))
    with pytest.raises(ModelError, match=r"algorithm\.critic\.name_or_path = '.*critic' has another vocabulary than the policy"):
        find(tmp_path, {"name_or_path": str(tmp_path / "critic")})


def test_a_missing_model_is_refused_with_its_key(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    with pytest.raises(ModelError, match=r"there is no model 'nowhere'.*set algorithm\.critic\.name_or_path to"):
        find(tmp_path, {"name_or_path": "nowhere"})
