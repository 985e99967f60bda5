import pytest
import torch
from torch import nn
from training.policies import policy

from headrace.errors import ModelError
from headrace.training.gradient_sums import GradientSums, last_weights


def test_sums_beside_the_weights_own_gradients():
    layer, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    layer.weight.grad = before = torch.ones(2, 3)
    outputs, sums = layer(inputs), GradientSums[str]([layer.weight, layer.bias], others=[])
    first, second = torch.randn(4, 2), torch.randn(4, 2)
    sums.add("a", outputs, first)
    sums.add("b", outputs, second)
    sums.add("a", outputs, second)
    expected = {"a": (first + second).T @ inputs, "b": second.T @ inputs}
    biases = {"a": (first + second).sum(dim=0), "b": second.sum(dim=0)}
    products = sums.products()
    for one in "ab":
        for other in "ab":
            product = float((expected[one] * expected[other]).sum() + biases[one] @ biases[other])
            assert products[one, other] == pytest.approx(product, rel=1e-5)
    assert layer.weight.grad is before
    assert torch.equal(before, torch.ones(2, 3))
    assert layer.bias.grad is None


def test_what_lies_before_the_weights_is_not_gone_through():
    first, last = nn.Linear(2, 2), nn.Linear(2, 2)
    visits: list[str] = []
    hidden = first(torch.ones(1, 2))
    hidden.register_hook(lambda _: visits.append("hidden"))
    outputs = last(hidden)
    GradientSums[str](list(last.parameters()), others=list(first.parameters())).add("a", outputs, torch.ones_like(outputs))
    assert visits == []
    assert first.weight.grad is None
    assert last.weight.grad is None
    outputs.sum().backward()
    assert visits == ["hidden"]


def test_a_failure_leaves_gradients_as_they_were():
    layer = nn.Linear(2, 2)
    layer.weight.grad = before = torch.ones(2, 2)
    with pytest.raises(RuntimeError):
        GradientSums[str]([layer.weight], others=[layer.bias]).add("a", layer(torch.ones(1, 2)), torch.ones(3, 3))
    assert layer.weight.grad is before


def test_the_last_layers_are_found():
    model = policy(num_hidden_layers=3)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [names[id(weight)] for weight in last_weights(model, 2)]
    assert {name.split(".")[2] for name in found} == {"1", "2"}
    assert len(found) == 2 * 9


def test_a_frozen_last_layer_is_refused():
    model = policy()
    for parameter in model.base_model.layers[-1].parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ModelError, match=r"none of their weights learns; raise shadow\.num_layers"):
        last_weights(model, 1)
