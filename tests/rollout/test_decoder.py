import copy

import pytest
import torch
from rollout.tiny_models import CONFIGS, SHAPE, tiny_model
from transformers import AutoModelForCausalLM, GptOssConfig, MambaConfig, PreTrainedConfig, Qwen3NextConfig

from headrace.errors import ModelError
from headrace.rollout.decoder import Decoder
from headrace.rollout.place_cache import DecodedToken, Segment

TOKENS = list(range(3, 24))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_a_plain_forward_pass_in_any_mixture_of_places(name: str):
    """Place 0 is prefilled in two stretches, place 2 in one; then both are decoded, place 2 from a copy in place 1."""
    decoder, plain = Decoder(tiny_model(name), num_places=3), tiny_model(name)
    with torch.inference_mode():
        decoder.compute([], [Segment(place=0, start=0, tokens=TOKENS[:9])])
        decoder.compute([], [Segment(place=0, start=9, tokens=TOKENS[9:20]), Segment(place=2, start=0, tokens=TOKENS[:12])])
        decoder.copy_place(source=2, target=1, length=12)
        alone = decoder.compute([DecodedToken(place=1, position=12, token=TOKENS[12])], [Segment(place=2, start=12, tokens=TOKENS[12:15])])
        both = decoder.compute(
            [DecodedToken(place=0, position=20, token=TOKENS[20]), DecodedToken(place=1, position=13, token=TOKENS[13])], []
        )
        expected = plain(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    torch.testing.assert_close(alone[0], expected[12], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(both, expected[[20, 13]], atol=1e-5, rtol=1e-5)


def test_bfloat16_stays_close_to_float32():
    model = tiny_model("llama_tied")
    decoder = Decoder(copy.deepcopy(model).to(torch.bfloat16), num_places=1)
    with torch.inference_mode():
        decoder.compute([], [Segment(place=0, start=0, tokens=TOKENS[:-1])])
        found = decoder.compute([DecodedToken(place=0, position=20, token=TOKENS[-1])], [])
        expected = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0, -1]
    assert (found[0].float() - expected).abs().max() < 0.03 * expected.abs().max()


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
