import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.algorithms.proximal import loglinear_proximal_logprobs
from headrace.algorithms.surrogates import clipped

logprob = st.floats(-12.0, 0.0)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


@given(logprob, logprob, st.integers(0, 20))
def test_loglinear_lies_between_and_contracts_the_ratio(current, behaviour, staleness):
    proximal = loglinear_proximal_logprobs(column(current), column(behaviour), torch.tensor([staleness])).item()
    assert min(current, behaviour) - 1e-12 <= proximal <= max(current, behaviour) + 1e-12
    ratio, weight = math.exp(current - proximal), math.exp(proximal - behaviour)
    importance = math.exp(current - behaviour)
    assert ratio == pytest.approx(importance ** (1 / max(staleness, 1)), rel=1e-9)
    assert ratio * weight == pytest.approx(importance, rel=1e-9)


def test_loglinear_values():
    current, behaviour = column(-1.5, -2.5, -3.5), column(-1.0, -2.0, -3.0)
    assert loglinear_proximal_logprobs(current, behaviour, torch.tensor([2, 2, 2])).tolist() == [-1.25, -2.25, -3.25]
    # versions 0 and 2 trained at 4; then fresh and one step old, which both are the sampler's own probability
    mixed = loglinear_proximal_logprobs(column(-1.5, -2.2), column(-1.0, -2.0), torch.tensor([4, 2]))
    assert mixed.tolist() == pytest.approx([-1.375, -2.1], rel=1e-12)
    assert loglinear_proximal_logprobs(current, behaviour, torch.tensor([0, 1, 0])).tolist() == behaviour.tolist()


def test_a_fresh_token_keeps_its_trust_region():
    """With the paper's choice for staleness 0 (the current policy itself) no token could be clipped."""
    current, behaviour = column(math.log(0.9)), column(math.log(0.5))
    proximal = loglinear_proximal_logprobs(current, behaviour, torch.tensor([0]))
    surrogate = clipped((current - proximal).exp(), current, column(1.0), epsilon=0.2, epsilon_high=0.2)
    assert surrogate.clipped_high.tolist() == [True]


@given(st.integers(1, 16), st.floats(-3.0, 3.0), st.sampled_from([1.0, -1.0]))
def test_staleness_widens_the_clip_range_to_its_power(staleness, log_importance, advantage):
    low, high = 0.8**staleness, 1.2**staleness
    importance = math.exp(log_importance)
    assume(min(abs(importance / low - 1), abs(importance / high - 1)) > 1e-9)
    proximal = loglinear_proximal_logprobs(column(log_importance - 4), column(-4.0), torch.tensor([staleness]))
    current = column(log_importance - 4)
    surrogate = clipped((current - proximal).exp(), current, column(advantage), epsilon=0.2, epsilon_high=0.2)
    assert surrogate.clipped_low.item() == (importance < low and advantage < 0)
    assert surrogate.clipped_high.item() == (importance > high and advantage > 0)


def test_loglinear_carries_no_gradient():
    current = column(-1.0, -2.0).requires_grad_()
    assert not loglinear_proximal_logprobs(current, column(-1.5, -1.5), torch.tensor([3, 3])).requires_grad
