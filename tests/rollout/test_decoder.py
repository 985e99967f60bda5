import copy

import pytest
import torch
from rollout.tiny_models import CONFIGS, SHAPE, tiny_model
from transformers import AutoModelForCausalLM, GptOssConfig, MambaConfig, PreTrainedConfig, Qwen3NextConfig

from headrace.errors import ModelError
from headrace.rollout.decoder import Decoder
from headrace.rollout.kernels import load_kernels
from headrace.rollout.step import DecodedToken, PromptPlace, Segment

TOKENS = list(range(3, 24))


PROMPT = PromptPlace(slot=1, length=12)
SHORT = PromptPlace(slot=0, length=0)


def decoded(place: int, position: int, prompt: PromptPlace = PROMPT) -> DecodedToken:
    return DecodedToken(place=place, prompt=prompt, position=position, token=TOKENS[position])


def prompt_stretch(start: int, end: int) -> Segment:
    return Segment(prompt=PROMPT, place=None, start=start, tokens=TOKENS[start:end])


def stretch(place: int, start: int, end: int, prompt: PromptPlace = PROMPT) -> Segment:
    return Segment(prompt=prompt, place=place, start=start, tokens=TOKENS[start:end])


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_a_plain_forward_pass_in_any_mixture(name: str):
    """A prompt in two stretches, rollouts at several positions behind it and one without it, decoded beside what is being cached."""
    decoder, plain = Decoder(tiny_model(name), num_places=3), tiny_model(name)
    with torch.inference_mode():
        decoder.compute([], [prompt_stretch(0, 5)])
        alone = decoder.compute([decoded(1, 12)], [prompt_stretch(5, 12), stretch(0, 12, 19), stretch(2, 0, 9, SHORT)])
        decoder.copy_place(source=0, target=2, length=6)
        together = decoder.compute([decoded(0, 19), decoded(2, 18)], [stretch(1, 13, 15)])
        mixed = decoder.compute([decoded(0, 20), decoded(1, 15), decoded(2, 0, SHORT)], [])
        expected = plain(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    torch.testing.assert_close(alone, expected[[12]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together, expected[[19, 18]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed, expected[[20, 15, 0]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3", "mistral_window", "gpt2"])
def test_bfloat16_stays_close_to_float32_also_with_new_weights(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch):
    if not compiled:
        monkeypatch.setenv("PATH", "")
    load_kernels.cache_clear()
    decoder = Decoder(tiny_model(name, seed=5, dtype=torch.bfloat16), num_places=2)
    model = tiny_model(name)
    with torch.inference_mode():
        decoder.check_weights(dict(model.named_parameters()))
        decoder.load_weights(dict(model.named_parameters()))
        first = decoder.compute([decoded(0, 12)], [prompt_stretch(0, 12), stretch(1, 12, 20)])
        second = decoder.compute([decoded(0, 13), decoded(1, 20)], [])
        expected = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    assert (torch.cat([first, second]).float() - expected[[12, 13, 20]]).abs().max() < 0.03 * expected.abs().max()


def test_an_activation_other_than_the_fused_one_runs_on_the_model_s_own_layers():
    config = copy.deepcopy(CONFIGS["llama"])
    config.hidden_act = "gelu"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0, -1]
        found = Decoder(model, num_places=1).compute([decoded(0, 20)], [prompt_stretch(0, 12), stretch(0, 12, 20)])
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)


NOT_FIT = {
    "state space": (MambaConfig(vocab_size=257, hidden_size=16, state_size=4, num_hidden_layers=2), "Mamba"),
    "linear attention": (
        Qwen3NextConfig(**{**SHAPE, "num_hidden_layers": 4}, head_dim=8, num_experts=2, moe_intermediate_size=8), "linear_attention"
    ),
    "sinks": (GptOssConfig(**SHAPE, head_dim=8, num_local_experts=2, num_experts_per_tok=1), "s_aux"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "reason"), NOT_FIT.values(), ids=NOT_FIT)
def test_models_without_an_ordinary_cache_are_refused(config: PreTrainedConfig, reason: str):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with pytest.raises(ModelError, match=reason):
        Decoder(model, num_places=1)
