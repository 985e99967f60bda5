"""The engine's layers with LoRA, and the models made of them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from adapters import LORA, adapted, randomise
from rollout.tiny_models import CONFIGS, tiny_model
from torch import nn
from transformers import PreTrainedModel

from headrace.config.lora import LoraSection
from headrace.errors import ModelError
from headrace.rollout.decoder import Decoder
from headrace.rollout.linears import AdaptedLinear, PackedLinear, PlainLinear, packs_bfloat16, stack_linears
from headrace.rollout.step import DecodedToken, PromptPlace, Segment
from headrace.training.adapter import learning_parameters

TOKENS = list(range(3, 24))
PROMPT = PromptPlace(slot=0, length=12)
NAMES = [name for name in CONFIGS if name != "gpt2"]
needs_bfloat16 = pytest.mark.skipif(not packs_bfloat16(), reason="this CPU has no bfloat16 arithmetic in oneDNN")


def published(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in learning_parameters(model).items()}


def logits(decoder: Decoder) -> torch.Tensor:
    """Behind positions 12 (decoded right behind the prompt) and 20 (behind a stretch of the completion)."""
    prompt = Segment(prompt=PROMPT, place=None, start=0, tokens=TOKENS[:12])
    rest = Segment(prompt=PROMPT, place=1, start=12, tokens=TOKENS[12:20])
    with torch.inference_mode():
        decoder.compute([], [prompt, rest])
        return decoder.compute(
            [DecodedToken(place=place, prompt=PROMPT, position=at, token=TOKENS[at]) for place, at in ((0, 12), (1, 20))], []
        )


def expected_logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0, [12, 20]]


@pytest.mark.parametrize("targets", [["q_proj"], ["v_proj", "down_proj", "gate_proj"], ["k_proj", "o_proj", "up_proj"]])
def test_any_choice_of_layers(targets: list[str]) -> None:
    model = adapted(tiny_model(), LoraSection(rank=2, target_modules=targets))
    torch.testing.assert_close(logits(Decoder(copy.deepcopy(model), num_places=2)), expected_logits(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_pefts_also_with_new_adapters(name: str) -> None:
    model = adapted(tiny_model(name))
    decoder = Decoder(copy.deepcopy(model), num_places=2)
    first = expected_logits(model)
    torch.testing.assert_close(logits(decoder), first, atol=1e-5, rtol=1e-5)
    randomise(model, seed=7)
    decoder.check_weights(published(model))
    with torch.inference_mode():
        decoder.load_weights(published(model))
    assert (expected_logits(model) - first).abs().max() > 0.01
    torch.testing.assert_close(logits(decoder), expected_logits(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3", "gemma2"])
def test_bfloat16_stays_close_to_float32(name: str) -> None:
    model = adapted(tiny_model(name))
    decoder = Decoder(adapted(tiny_model(name), seed=3).to(torch.bfloat16), num_places=2)
    with torch.inference_mode():
        decoder.load_weights(decoder.copy_of(published(model)))
    expected = expected_logits(model)
    assert (logits(decoder).float() - expected).abs().max() < 0.03 * expected.abs().max()


def test_the_base_is_not_published() -> None:
    model = adapted(tiny_model())
    decoder = Decoder(copy.deepcopy(model), num_places=1)
    with pytest.raises(ModelError, match=r"unexpected: model\.embed_tokens\.weight"):
        decoder.check_weights(dict(tiny_model().named_parameters()))
    incomplete = published(model)
    del incomplete["model.layers.1.mlp.up_proj.lora_B.default.weight"]
    with pytest.raises(ModelError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.lora_B\.default\.weight"):
        decoder.check_weights(incomplete)


@needs_bfloat16
def test_what_bfloat16_weights_cannot_hold_still_reaches_the_logits() -> None:
    """B · A is so small that adding it to the weights changes none of them."""
    model = adapted(tiny_model(dtype=torch.bfloat16), size=1e-3)
    decoder = Decoder(copy.deepcopy(model), num_places=2)
    merged = copy.deepcopy(model)
    layers = [module for module in merged.modules() if hasattr(module, "lora_A")]
    before = [layer.base_layer.weight.clone() for layer in layers]
    for layer in layers:
        layer.merge()
    unchanged = torch.cat([(was == layer.base_layer.weight).flatten() for was, layer in zip(before, layers, strict=True)])
    assert unchanged.float().mean() > 0.98
    with_adapter = logits(decoder)
    none = {name: torch.zeros_like(tensor) for name, tensor in published(model).items()}
    with torch.inference_mode():
        decoder.load_weights(none)
    assert (with_adapter != logits(decoder)).float().mean() > 0.3


def layers(dtype: torch.dtype, *, bias: bool) -> list[nn.Module]:
    """Two of three layers with an adapter."""
    torch.manual_seed(0)
    model = tiny_model("qwen2" if bias else "llama")
    attention = adapted(model, LoraSection(rank=2, alpha=6, target_modules=["q_proj", "v_proj"])).to(dtype).model.layers[0].self_attn
    return [attention.q_proj, attention.k_proj, attention.v_proj]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
def test_stacked_layers_compute_what_they_did_apart(dtype: torch.dtype, bias: bool) -> None:
    apart = layers(dtype, bias=bias)
    stacked = stack_linears(apart)
    assert isinstance(stacked, AdaptedLinear)
    assert type(stacked._base) is (PackedLinear if dtype == torch.bfloat16 else PlainLinear)
    inputs, other = torch.randn(5, 32, dtype=dtype), torch.randn(5, 64, dtype=dtype)
    close = {"atol": 0.03, "rtol": 0.03} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    with torch.inference_mode():
        expected = torch.cat([layer(inputs) for layer in apart], dim=-1)
        torch.testing.assert_close(stacked(inputs), expected, **close)
        torch.testing.assert_close(stacked.silu(inputs), F.silu(expected), **close)
        torch.testing.assert_close(stacked.times(inputs, other), expected * other, **close)
        torch.testing.assert_close(stacked.plus(inputs, other), expected + other, **close)


def test_an_adapter_of_the_largest_rank_is_no_approximation() -> None:
    """The scale is alpha / rank."""
    lora = LoraSection(rank=LORA.rank, alpha=3 * LORA.rank, target_modules=["o_proj"])
    layer = adapted(tiny_model(), lora).model.layers[0].self_attn.o_proj
    stacked, inputs = stack_linears([layer]), torch.randn(4, 32)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.inference_mode():
        torch.testing.assert_close(stacked(inputs), inputs @ (layer.base_layer.weight + 3 * b @ a).T, atol=1e-5, rtol=1e-5)
