import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_tokenizers import CHAT_TEMPLATE, IDS, ids_of, word_tokenizer
from training.policies import SIZES, row
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from headrace.errors import ModelError
from headrace.launch.model_loading import auto_dtype, load_policy, load_tokenizer, max_sequence_length, stop_token_ids
from headrace.rollout.decoder import Decoder
from headrace.rollout.step import DecodedToken, PromptPlace, Segment
from headrace.training.policy_model import PolicyModel

LLAMA = LlamaConfig(
    vocab_size=len(IDS),
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=48,
    bos_token_id=1,
    eos_token_id=2,
    attention_dropout=0.3,
)


@pytest.fixture
def llama_folder(tmp_path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LLAMA).save_pretrained(tmp_path)
    word_tokenizer(adds="<s> $A").save_pretrained(tmp_path)
    return tmp_path


def refusal(path: Path | str) -> str:
    with pytest.raises(ModelError) as caught:
        load_policy(path, dtype=torch.float32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_policy_has_the_weights_of_its_folder_in_the_type_asked_for(llama_folder):
    stored = load_file(llama_folder / "model.safetensors")["model.embed_tokens.weight"]
    for dtype in (torch.float32, torch.bfloat16):
        policy = load_policy(llama_folder, dtype=dtype)
        assert not policy.training
        assert {parameter.dtype for parameter in policy.parameters()} == {dtype}
        assert torch.equal(policy.get_input_embeddings().weight, stored.to(dtype))


def test_a_policy_computes_the_same_in_training_mode(llama_folder, tmp_path):
    config = GPT2Config(vocab_size=len(IDS), n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2)
    assert config.resid_pdrop == config.attn_pdrop == 0.1
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    for folder in (llama_folder, tmp_path / "gpt2"):
        policy = load_policy(folder, dtype=torch.float32)
        ids = torch.tensor([ids_of("what is one plus two ?")])
        assert torch.equal(policy.train()(ids).logits, policy.eval()(ids).logits)


def test_attention_that_torch_has_no_kernel_for_is_the_same_in_engine_and_trainer(tmp_path):
    """Gemma 2 caps its scores, here so low that without the cap all would be different."""
    torch.manual_seed(0)
    settings = SIZES | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    plain = Gemma2ForCausalLM(Gemma2Config(**settings, attn_logit_softcapping=0.5)).eval()
    plain.save_pretrained(tmp_path)
    asked = row(9, (6,), seed=0)
    tokens = [*asked.prompt_ids, *asked.samples[0].completion_ids.tolist()]
    logits = plain(input_ids=torch.tensor([tokens])).logits[0].detach()

    policy = load_policy(tmp_path, dtype=torch.float32)
    engine = Decoder(copy.deepcopy(policy), num_places=1)
    prompt = PromptPlace(slot=0, length=8)
    with torch.inference_mode():
        engine.compute([], [Segment(prompt=prompt, place=None, start=0, tokens=tokens[:8])])
        engine.compute([], [Segment(prompt=prompt, place=0, start=8, tokens=tokens[8:-1])])
        found = engine.compute([DecodedToken(place=0, prompt=prompt, position=14, token=tokens[14])], [])
    torch.testing.assert_close(found, logits[-1:], atol=1e-5, rtol=1e-5)

    trainer = PolicyModel(policy, temperature=1.0, autocast_dtype=None, token_budget=64)
    (rows,) = trainer.passes([asked])
    expected = logits[8:-1].log_softmax(-1).gather(1, torch.tensor(tokens[9:])[:, None])[:, 0]
    torch.testing.assert_close(trainer.score(rows).logprobs, expected, atol=1e-5, rtol=1e-5)


def test_an_attention_kernel_that_the_folder_names_is_not_asked_for(llama_folder):
    settings = json.loads((llama_folder / "config.json").read_text())
    (llama_folder / "config.json").write_text(json.dumps({**settings, "attn_implementation": "flash_attention_2"}))
    assert load_policy(llama_folder, dtype=torch.float32).config._attn_implementation == "sdpa"


def test_every_declared_stop_token_counts(llama_folder):
    settings = json.loads((llama_folder / "generation_config.json").read_text())
    (llama_folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [2, 5]}))
    policy, tokenizer = load_policy(llama_folder, dtype=torch.float32), load_tokenizer(llama_folder)
    assert stop_token_ids(tokenizer, policy) == {2, 5}
    policy.config.eos_token_id = [2, 4]
    tokenizer.eos_token = "<unk>"
    assert stop_token_ids(tokenizer, policy) == {0, 2, 4, 5}


def test_a_model_that_declares_no_stop_token_has_none(llama_folder):
    policy, tokenizer = load_policy(llama_folder, dtype=torch.float32), load_tokenizer(llama_folder)
    policy.config.eos_token_id = policy.generation_config.eos_token_id = tokenizer.eos_token = None
    assert stop_token_ids(tokenizer, policy) == frozenset()


def test_the_reach_of_the_positions():
    assert max_sequence_length(LLAMA) == 48
    assert max_sequence_length(GPT2Config(n_positions=32)) == 32
    assert max_sequence_length(T5Config()) is None


def test_a_tokenizer_takes_another_chat_template(llama_folder):
    assert load_tokenizer(llama_folder).chat_template is None
    tokenizer = load_tokenizer(llama_folder, chat_template=CHAT_TEMPLATE)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s> <user> hi </s>"


def test_a_chat_template_that_is_not_jinja_is_refused(llama_folder):
    with pytest.raises(ModelError, match=r"model.chat_template is not a Jinja template: .* \(line 1\)"):
        load_tokenizer(llama_folder, chat_template="{% for message in messages %}")


def test_other_kinds_of_models_are_refused(tmp_path):
    config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    assert "is a T5ForConditionalGeneration, but only causal" in refusal(tmp_path / "t5")
    small = BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertForMaskedLM(small).save_pretrained(tmp_path / "bert")
    assert "is a BertForMaskedLM, but only causal" in refusal(tmp_path / "bert")


def test_weights_that_are_missing_are_not_made_up(llama_folder):
    weights = load_file(llama_folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, llama_folder / "model.safetensors", metadata={"format": "pt"})
    assert "no weights for 1 parameters (model.layers.0.mlp.up_proj.weight" in refusal(llama_folder)


@pytest.mark.parametrize(
    "config", ['{"model_type": "no-such-architecture"}', "{", '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}']
)
def test_a_folder_that_transformers_cannot_load_is_told_in_one_line(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    assert str(tmp_path) in refusal(tmp_path)


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "'org/no-such-model' cannot be loaded" in refusal("org/no-such-model")
    with pytest.raises(ModelError, match="the tokenizer of 'org/no-such-model' cannot be loaded"):
        load_tokenizer("org/no-such-model")


def test_the_automatic_type_is_one_that_this_machine_can_multiply():
    dtype = auto_dtype()
    assert dtype in (torch.float32, torch.bfloat16)
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if not torch.cuda.is_available():
        assert (dtype == torch.bfloat16) == ("avx512_bf16" in flags or "amx_tile" in flags)
