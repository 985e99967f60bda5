import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.values import clipped_value_losses, measure_values

NUMBERS = st.floats(-3, 3, width=32)


def test_clipped_losses_by_hand() -> None:
    values = torch.tensor([1.5, 1.5, 0.9, 1.1])
    old_values = torch.ones(4)
    returns = torch.tensor([2.0, 0.0, 2.0, 2.0])
    losses, clipped = clipped_value_losses(values, old_values, returns, clip=0.2)
    # 1: nearer than allowed, so the value 1.2 counts. 2: moved away, so it counts itself. 3, 4: within the bound.
    torch.testing.assert_close(losses, 0.5 * torch.tensor([0.8**2, 1.5**2, 1.1**2, 0.9**2]))
    assert clipped.tolist() == [True, False, False, False]


def test_only_a_clipped_value_has_no_gradient() -> None:
    values = torch.tensor([1.5, 1.5, 0.9], requires_grad=True)
    losses, _ = clipped_value_losses(values, torch.ones(3), torch.tensor([2.0, 0.0, 2.0]), clip=0.2)
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 1.5, -1.1]))


def test_at_the_old_value_the_gradient_is_that_of_the_squared_error() -> None:
    values = torch.tensor([0.3, -1.0], requires_grad=True)
    returns = torch.tensor([1.0, 2.0])
    (gradient,) = torch.autograd.grad(clipped_value_losses(values, values.detach(), returns, clip=0.2).losses.sum(), values)
    torch.testing.assert_close(gradient, values.detach() - returns)


@given(value=NUMBERS, old_value=NUMBERS, return_=NUMBERS, clip=st.floats(0.1, 2))
def test_the_gradient_is_the_finite_difference(value: float, old_value: float, return_: float, clip: float) -> None:
    old, target = torch.tensor([old_value], dtype=torch.float64), torch.tensor([return_], dtype=torch.float64)

    def loss(at: torch.Tensor) -> torch.Tensor:
        return clipped_value_losses(at, old, target, clip=clip).losses.sum()

    step = 1e-6
    point = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    left, right = float(loss(point.detach() - step)), float(loss(point.detach() + step))
    (gradient,) = torch.autograd.grad(loss(point), point)
    at = float(loss(point.detach()))
    one_sided = [(at - left) / step, (right - at) / step]
    # At a corner, any number between the slopes on both sides is a gradient.
    assert min(one_sided) - 1e-4 <= float(gradient) <= max(one_sided) + 1e-4


def test_totals_add_up_to_the_metrics_of_all_tokens() -> None:
    values, returns = torch.tensor([1.0, 2.0, 2.0, 5.0]), torch.tensor([1.0, 3.0, 2.0, 8.0])
    clipped = torch.tensor([True, False, False, False])
    parts = [measure_values(old_values=values[cut], returns=returns[cut], clipped=clipped[cut]) for cut in (slice(0, 1), slice(1, 4))]
    metrics = (parts[0] + parts[1]).metrics()
    residual = (returns - values).var(unbiased=False) / returns.var(unbiased=False)
    assert metrics == pytest.approx(
        {"value_clip_ratio": 0.25, "values/mean": 2.5, "returns/mean": 3.5, "explained_variance": 1 - float(residual)}, rel=1e-6
    )


def test_equal_returns_leave_nothing_to_explain() -> None:
    totals = measure_values(old_values=torch.rand(5), returns=torch.full((5,), 0.1), clipped=torch.zeros(5, dtype=torch.bool))
    assert "explained_variance" not in totals.metrics()
