import pytest
import torch
from torch import nn

from headrace.config.training import TrainingSection
from headrace.training.optimizer import PolicyOptimizer

TRAINING = TrainingSection(learning_rate=0.1, weight_decay=0.5, max_grad_norm=1.0, adam_epsilon=1e-12)


def parameters_with_gradient(value: float) -> tuple[nn.Parameter, nn.Parameter]:
    matrix, vector = nn.Parameter(torch.ones(1, 2)), nn.Parameter(torch.ones(2))
    matrix.grad, vector.grad = torch.full((1, 2), value), torch.full((2,), value)
    return matrix, vector


def update(optimizer: PolicyOptimizer, *, denominator: float) -> None:
    optimizer.update(grad_norm=optimizer.grad_norm(denominator=denominator), denominator=denominator, learning_rate=0.1)


def test_the_norm_is_that_of_the_divided_gradient() -> None:
    optimizer = PolicyOptimizer(parameters_with_gradient(6.0), TRAINING)
    assert optimizer.grad_norm(denominator=4.0) == pytest.approx(3.0)


def test_an_update_is_counted_in_the_weights_versions() -> None:
    weights = parameters_with_gradient(6.0)
    before = [weight._version for weight in weights]
    update(PolicyOptimizer(weights, TRAINING), denominator=4.0)
    assert all(weight._version > version for weight, version in zip(weights, before, strict=True))


def test_only_matrices_decay() -> None:
    """Adam's first step moves each weight by the learning rate against its gradient's sign; decay takes 0.1 · 0.5 of it before."""
    matrix, vector = parameters_with_gradient(6.0)
    update(PolicyOptimizer([matrix, vector], TRAINING), denominator=4.0)
    torch.testing.assert_close(matrix.detach(), torch.full((1, 2), 1 - 0.05 - 0.1))
    torch.testing.assert_close(vector.detach(), torch.full((2,), 0.9))


@pytest.mark.parametrize(("value", "denominator", "used"), [(6.0, 4.0, 0.5), (0.5, 4.0, 0.125)])
def test_a_gradient_is_divided_and_then_clipped_to_the_norm(value: float, denominator: float, used: float) -> None:
    """Four equal entries of norm 1 after clipping are 0.5 each; a gradient of norm 0.25 is left alone. Adam's mean starts at a tenth."""
    matrix, vector = parameters_with_gradient(value)
    optimizer = PolicyOptimizer([matrix, vector], TRAINING)
    update(optimizer, denominator=denominator)
    torch.testing.assert_close(optimizer.state()["state"][0]["exp_avg"], torch.full((1, 2), 0.1 * used))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_norm_of_a_gradient_that_is_not_finite_is_not_finite(value: float) -> None:
    matrix, vector = parameters_with_gradient(1.0)
    vector.grad = torch.tensor([1.0, value])
    assert not PolicyOptimizer([matrix, vector], TRAINING).grad_norm(denominator=1.0) < float("inf")


def test_without_any_gradient_momentum_and_decay_go_on() -> None:
    matrix, vector = parameters_with_gradient(6.0)
    optimizer = PolicyOptimizer([matrix, vector], TRAINING)
    update(optimizer, denominator=4.0)
    before = matrix.detach().clone()
    assert matrix.grad is None
    update(optimizer, denominator=4.0)
    assert bool((matrix < before).all())
