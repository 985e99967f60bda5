import pytest
import torch
import torch.nn.functional as F
from rollout.tiny_models import tiny_model
from torch import nn

from headrace.rollout.linears import PackedLinear, PlainLinear, pack_linears, packs_bfloat16, stack_linears
from headrace.rollout.model_weights import ModelWeights

needs_bfloat16 = pytest.mark.skipif(not packs_bfloat16(), reason="this CPU has no bfloat16 arithmetic in oneDNN")


def layers(dtype: torch.dtype, *, bias: bool) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(48, size, bias=bias, dtype=dtype).requires_grad_(False) for size in (80, 16)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
def test_stacked_layers_compute_what_they_did_apart_also_with_new_weights(dtype: torch.dtype, bias: bool):
    apart = layers(dtype, bias=bias)
    stacked = stack_linears(apart)
    assert type(stacked) is (PackedLinear if dtype == torch.bfloat16 else PlainLinear)
    inputs, other = torch.randn(5, 48, dtype=dtype), torch.randn(5, 96, dtype=dtype)
    new = [torch.randn_like(parameter, dtype=torch.float32) for layer in apart for parameter in layer.parameters()]
    for _ in range(2):
        expected = torch.cat([layer(inputs) for layer in apart], dim=-1)
        torch.testing.assert_close(stacked(inputs), expected)
        torch.testing.assert_close(stacked.silu(inputs), F.silu(expected), atol=0.02, rtol=0.02)
        torch.testing.assert_close(stacked.times(inputs, other), expected * other, atol=0.02, rtol=0.02)
        torch.testing.assert_close(stacked.plus(inputs, other), expected + other, atol=0.02, rtol=0.02)
        for parameter, value in zip([p for layer in apart for p in layer.parameters()], new, strict=True):
            parameter.copy_(value)
        stacked.load([layer.weight for layer in apart], [layer.bias for layer in apart if bias])


@needs_bfloat16
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_new_weights_of_any_type_are_rounded_and_packed_as_those_of_a_new_layer(dtype: torch.dtype, number: int):
    stacked = stack_linears(layers(torch.bfloat16, bias=True)[:number])
    new = [nn.Linear(48, layer.out_features, dtype=dtype).requires_grad_(False) for layer in layers(dtype, bias=True)[:number]]
    stacked.load([layer.weight for layer in new], [layer.bias for layer in new])
    inputs = torch.randn(5, 48, dtype=torch.bfloat16)
    assert torch.equal(stacked(inputs), stack_linears([layer.bfloat16() for layer in new])(inputs))


@needs_bfloat16
def test_every_linear_layer_is_packed_and_a_tied_embedding_stays():
    model = tiny_model("llama_tied", dtype=torch.bfloat16)
    pack_linears(model, ModelWeights(model))
    assert not [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert isinstance(model.get_output_embeddings(), PackedLinear)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_only_bfloat16_layers_are_packed():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float16)])
    pack_linears(model, ModelWeights(model))
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]
