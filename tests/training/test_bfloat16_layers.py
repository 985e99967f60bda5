import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training.policies import gradients, policy, relative_gap
from transformers import PreTrainedModel
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from headrace.config.training import TrainingSection
from headrace.training.bfloat16_layers import Bfloat16Linear, GatedLayer, InPlaceEmbedding, RMSNorm, use_bfloat16_layers
from headrace.training.gradients import CastWeight
from headrace.training.optimizer import PolicyOptimizer

IDS = torch.tensor([[5, 0, 9, 5, 7]])


def replaced(model: PreTrainedModel) -> PreTrainedModel:
    use_bfloat16_layers(model)
    return model


def kinds(model: PreTrainedModel) -> set[type[nn.Module]]:
    return {type(module) for module in model.modules()} & {Bfloat16Linear, GatedLayer, InPlaceEmbedding, RMSNorm}


def hidden_states(model: PreTrainedModel, *, autocast: bool) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return model.base_model(input_ids=IDS, use_cache=False).last_hidden_state


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", {Bfloat16Linear, GatedLayer, InPlaceEmbedding, RMSNorm}),
        ("qwen2", {Bfloat16Linear, GatedLayer, InPlaceEmbedding, RMSNorm}),
        ("qwen3", {Bfloat16Linear, GatedLayer, InPlaceEmbedding, RMSNorm}),
        ("gemma", {Bfloat16Linear, RMSNorm}),
        ("phi3", {Bfloat16Linear, InPlaceEmbedding, RMSNorm}),
    ],
)
def test_known_layers_are_replaced_and_compute_what_they_did(model_type: str, expected: set[type[nn.Module]]) -> None:
    plain, model = policy(model_type), replaced(policy(model_type))
    assert kinds(model) == expected
    assert model.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(hidden_states(model, autocast=False), hidden_states(plain, autocast=False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma", "phi3"])
def test_gradients_are_those_of_float32_within_bfloat16s_tolerance(model_type: str) -> None:
    settings = {"initializer_range": 0.1}
    plain, model = policy(model_type, **settings), replaced(policy(model_type, **settings))
    upstream = torch.randn(1, 5, 32)
    for _ in range(2):  # The second pass adds to what is there.
        (hidden_states(plain, autocast=False) * upstream).sum().backward()
        (hidden_states(model, autocast=True).float() * upstream).sum().backward()
    wanted, found = gradients(plain), gradients(model)
    assert all(gradient.dtype == torch.float32 for gradient in found.values())
    assert 0 < relative_gap(wanted, found) < 0.05
    for name in wanted:
        assert relative_gap({name: wanted[name]}, {name: found[name]}) < 0.15, name


def test_products_use_the_weights_of_now_not_of_the_first_pass() -> None:
    model = replaced(policy())
    optimizer = PolicyOptimizer(model.parameters(), TrainingSection())
    before = hidden_states(model, autocast=True)
    before.sum().backward()
    optimizer.update(grad_norm=optimizer.grad_norm(denominator=1.0), denominator=1.0, learning_rate=0.1)
    fresh = replaced(policy())
    fresh.load_state_dict(model.state_dict())
    after = hidden_states(model, autocast=True)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, hidden_states(fresh, autocast=True), rtol=0, atol=0)


def test_a_weight_is_cast_once_a_version() -> None:
    weight = nn.Parameter(torch.randn(3, 2))
    cast = CastWeight(weight, torch.bfloat16)
    first = cast.get()
    version = first._version
    assert cast.get() is first
    assert first._version == version
    with torch.no_grad():
        weight.mul_(2)
    torch.testing.assert_close(cast.get(), weight.detach().bfloat16(), rtol=0, atol=0)


def test_a_weight_of_the_right_type_is_not_copied() -> None:
    weight = nn.Parameter(torch.randn(3, 2))
    assert CastWeight(weight, torch.float32).get().data_ptr() == weight.data_ptr()


def test_a_copied_model_casts_its_own_weights() -> None:
    model = replaced(policy())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert float(hidden_states(model, autocast=True).detach().abs().max()) > 0
    assert float(hidden_states(twin, autocast=True).detach().abs().max()) == 0


@pytest.mark.parametrize(("layer", "offset"), [(LlamaRMSNorm(6), 0.0), (GemmaRMSNorm(6), 1.0)])
def test_a_norm_and_its_gradients_are_those_of_the_layer_it_replaces(layer: Any, offset: float) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.randn(6))
    found_inputs, inputs, upstream = *(torch.linspace(-1, 2, 24).view(4, 6).requires_grad_() for _ in range(2)), torch.randn(4, 6)
    (layer(inputs) * upstream).sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None

    norm = RMSNorm(layer.weight, epsilon=1e-6, offset=offset)
    (norm(found_inputs) * upstream).sum().backward()

    torch.testing.assert_close(norm(found_inputs), layer(inputs))
    torch.testing.assert_close(found_inputs.grad, inputs.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-4, atol=1e-5)


def test_a_padding_token_learns_nothing_from_the_embedding() -> None:
    plain = nn.Embedding(4, 3, padding_idx=1)
    token_ids, upstream = torch.tensor([[1, 2, 2, 0]]), torch.randn(1, 4, 3)
    (plain(token_ids) * upstream).sum().backward()
    expected, plain.weight.grad = plain.weight.grad, None
    (InPlaceEmbedding(plain)(token_ids) * upstream).sum().backward()
    torch.testing.assert_close(plain.weight.grad, expected)


def test_layers_that_only_look_alike_stay() -> None:
    """A norm that adds something of its own, and a gated layer with another activation."""

    class ShiftedRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return super().forward(hidden_states) + 0.5

    model = policy("llama", hidden_act="gelu")
    model.model.norm = ShiftedRMSNorm(32)
    replaced(model)
    assert type(model.model.norm) is ShiftedRMSNorm
    assert GatedLayer not in kinds(model)
