import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.surrogates import clipped_surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "low", "high"),
    [
        (1.0, 2.0, -2.0, -2.0, False, False),
        (1.1, 2.0, -2.2, -2.0, False, False),
        (1.4, 2.0, -2.56, 0.0, False, True),  # above 1 + 0.28
        (0.5, 2.0, -1.0, -2.0, False, False),  # a likelier token is still pulled up
        (0.5, -2.0, 1.6, 0.0, True, False),  # below 1 - 0.2
        (1.4, -2.0, 2.8, 2.0, False, False),  # no upper bound on what is pushed down
        (1.4, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_values_and_slopes_by_hand(ratio, advantage, loss, slope, low, high):
    ratios = torch.tensor([ratio], requires_grad=True)
    surrogate = clipped_surrogate(ratios, torch.tensor([advantage]), epsilon=0.2, epsilon_high=0.28)
    surrogate.losses.sum().backward()
    assert surrogate.losses.tolist() == pytest.approx([loss])
    assert ratios.grad.tolist() == pytest.approx([slope])
    assert (surrogate.clipped_low.tolist(), surrogate.clipped_high.tolist()) == ([low], [high])


@given(st.floats(0.01, 10.0), st.floats(-5.0, 5.0, allow_subnormal=False), st.floats(0.01, 0.9), st.floats(0.01, 2.0))
def test_a_token_is_counted_as_clipped_exactly_when_it_has_no_gradient(ratio, advantage, epsilon, epsilon_high):
    ratios = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    surrogate = clipped_surrogate(ratios, torch.tensor([advantage], dtype=torch.float64), epsilon=epsilon, epsilon_high=epsilon_high)
    surrogate.losses.sum().backward()
    clipped = surrogate.clipped_low.item() or surrogate.clipped_high.item()
    assert clipped == (ratios.grad.item() == 0.0 and advantage != 0.0)
