import pytest
import torch
from rollout.tiny_models import tiny_model
from torch import nn

from headrace.rollout.packed_linears import PackedLinear, pack_linears, packs_bfloat16

needs_bfloat16 = pytest.mark.skipif(not packs_bfloat16(), reason="this CPU has no bfloat16 arithmetic in oneDNN")


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
def test_packed_equals_plain_also_after_packing_another_weight(bias: bool):
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias, dtype=torch.bfloat16).requires_grad_(False)
    packed = PackedLinear(linear)
    inputs = torch.randn(5, 3, 48, dtype=torch.bfloat16)
    torch.testing.assert_close(packed(inputs), linear(inputs))
    linear.weight.copy_(weight := torch.randn(80, 48))
    packed.pack(weight)
    torch.testing.assert_close(packed(inputs), linear(inputs))


@needs_bfloat16
def test_every_linear_layer_is_replaced_and_a_tied_embedding_stays():
    model = tiny_model("llama_tied", dtype=torch.bfloat16)
    pack_linears(model)
    assert not [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert isinstance(model.get_output_embeddings(), PackedLinear)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_only_bfloat16_layers_are_packed():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float16)])
    pack_linears(model)
    assert [type(module) for module in model] == [nn.Linear, nn.Linear]
