import math
from functools import partial

import pytest
import torch
from algorithms.token_losses import SURROGATES
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.algorithms.surrogates import cispo, clipped, dual_clipped, importance, reinforce, sapo

positive_ratio = st.floats(0.01, 10.0)
advantage_value = st.floats(-5.0, 5.0, allow_subnormal=False)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def with_slope(surrogate, ratio, advantage):
    """A token's loss and its slope in log π, which is both an argument and what the ratio is made of."""
    logprob = column(math.log(ratio) - 2).requires_grad_()
    result = surrogate((logprob + 2).exp(), logprob, column(advantage))
    (slope,) = torch.autograd.grad(result.losses.sum(), logprob)
    return result, slope.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "low", "high"),
    [
        (1.0, 2.0, -2.0, -2.0, False, False),
        (1.1, 2.0, -2.2, -2.2, False, False),
        (1.4, 2.0, -2.56, 0.0, False, True),  # above 1 + 0.28
        (0.5, 2.0, -1.0, -1.0, False, False),  # a likelier token is still pulled up
        (0.5, -2.0, 1.6, 0.0, True, False),  # below 1 - 0.2
        (1.4, -2.0, 2.8, 2.8, False, False),  # no upper bound on what is pushed down
        (1.4, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_the_clip_by_hand(ratio, advantage, loss, slope, low, high):
    result, found = with_slope(partial(clipped, epsilon=0.2, epsilon_high=0.28), ratio, advantage)
    assert (result.losses.item(), found) == (pytest.approx(loss), pytest.approx(slope))
    assert (result.clipped_low.item(), result.clipped_high.item()) == (low, high)


@given(positive_ratio, advantage_value, st.floats(0.01, 0.9), st.floats(0.01, 2.0))
def test_a_token_is_counted_as_clipped_exactly_when_it_has_no_gradient(ratio, advantage, epsilon, epsilon_high):
    assume(min(abs(ratio - 1 + epsilon), abs(ratio - 1 - epsilon_high)) > 1e-9)
    result, slope = with_slope(partial(clipped, epsilon=epsilon, epsilon_high=epsilon_high), ratio, advantage)
    assert (result.clipped_low.item() or result.clipped_high.item()) == (slope == 0.0 and advantage != 0.0)


@given(positive_ratio, advantage_value, st.floats(1.01, 9.0))
def test_the_dual_clip_bounds_bad_tokens_alone(ratio, advantage, delta):
    assume(abs(ratio - delta) > 1e-9)
    plain, _ = with_slope(partial(clipped, epsilon=0.2, epsilon_high=0.28), ratio, advantage)
    dual, slope = with_slope(partial(dual_clipped, epsilon=0.2, epsilon_high=0.28, delta=delta), ratio, advantage)
    if advantage < 0 and ratio > delta:
        assert (dual.losses.item(), slope, dual.clipped_high.item()) == (pytest.approx(-delta * advantage), 0.0, True)
    else:
        assert dual.losses.item() == pytest.approx(plain.losses.item())
        assert dual.clipped_high.item() == plain.clipped_high.item()
    assert dual.clipped_low.item() == plain.clipped_low.item()


@given(positive_ratio, advantage_value, st.floats(1.28, 9.0))
def test_the_dual_clip_is_the_two_sided_one_for_a_delta_above_the_clip(ratio, advantage, delta):
    """INTELLECT-2: the ratio is cut at delta inside the minimum, whatever the advantage's sign."""
    dual, _ = with_slope(partial(dual_clipped, epsilon=0.2, epsilon_high=0.28, delta=delta), ratio, advantage)
    two_sided = -min(min(ratio, delta) * advantage, min(max(ratio, 0.8), 1.28) * advantage)
    assert dual.losses.item() == pytest.approx(two_sided)


@given(positive_ratio, advantage_value)
def test_cispo_cuts_the_weight_and_never_the_gradient(ratio, advantage):
    assume(abs(ratio - 3.0) > 1e-9)
    result, slope = with_slope(partial(cispo, ratio_cap=3.0), ratio, advantage)
    assert slope == pytest.approx(-min(ratio, 3.0) * advantage)
    assert result.clipped_high.item() == (ratio > 3.0)
    assert not result.clipped_low.item()


def test_a_token_that_the_clip_stops_still_learns_with_cispo():
    assert with_slope(partial(clipped, epsilon=0.2, epsilon_high=0.28), 4.0, 1.0)[1] == 0.0
    assert with_slope(partial(cispo, ratio_cap=3.0), 4.0, 1.0)[1] == pytest.approx(-3.0)


@given(positive_ratio, advantage_value)
def test_the_gate_of_sapo(ratio, advantage):
    result, slope = with_slope(partial(sapo, tau_positive=1.0, tau_negative=1.05), ratio, advantage)
    tau = 1.0 if advantage > 0 else 1.05
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    assert result.losses.item() == pytest.approx(-4 / tau * gate * advantage, rel=1e-9)
    assert slope == pytest.approx(-4 * gate * (1 - gate) * ratio * advantage, rel=1e-7, abs=1e-12)
    assert abs(slope) <= ratio * abs(advantage) * (1 + 1e-12)  # never more than importance sampling's own


def test_sapo_has_a_sharpness_for_each_sign():
    losses = [with_slope(partial(sapo, tau_positive=2.0, tau_negative=8.0), 1.5, a)[0].losses.item() for a in (1.0, -1.0)]
    assert losses == pytest.approx([-2 / (1 + math.exp(-1)), 0.5 / (1 + math.exp(-4))])


@given(positive_ratio, advantage_value)
def test_importance_and_reinforce_have_no_bound(ratio, advantage):
    assert with_slope(importance, ratio, advantage)[1] == pytest.approx(-ratio * advantage)
    assert with_slope(reinforce, ratio, advantage)[1] == pytest.approx(-advantage)


@pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)
@given(advantage=advantage_value)
def test_at_ratio_1_all_have_the_gradient_of_reinforce(surrogate, advantage):
    assert with_slope(surrogate, 1.0, advantage)[1] == pytest.approx(-advantage, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.4, 7.0])
def test_without_an_advantage_there_is_no_gradient(surrogate, ratio):
    result, slope = with_slope(surrogate, ratio, 0.0)
    assert (result.losses.item(), slope) == (0.0, 0.0)
