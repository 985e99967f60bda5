import math

import pytest
import torch

from headrace.algorithms.ratios import log_ratios, masked, ratios


def test_ratio_is_the_quotient_of_the_probabilities():
    probabilities, others = torch.tensor([0.5, 0.2, 0.9]), torch.tensor([0.25, 0.4, 0.9])
    assert ratios(probabilities.log(), others.log()).tolist() == pytest.approx([2.0, 0.5, 1.0], rel=1e-6)


@pytest.mark.parametrize(("gap", "cut"), [(99.0, 20.0), (-99.0, -20.0), (math.inf, 20.0), (19.5, 19.5)])
def test_huge_log_ratios_are_cut_and_stop_the_gradient(gap, cut):
    logprobs = torch.tensor([0.0 if math.isinf(gap) else gap], requires_grad=True)
    other = torch.tensor([-gap if math.isinf(gap) else 0.0])
    assert log_ratios(logprobs, other).tolist() == [cut]
    ratios(logprobs, other).sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([math.exp(cut) if abs(gap) < 20 else 0.0], rel=1e-5)


def test_masked_selects_so_that_nan_does_not_come_back_in_the_gradient():
    values = torch.tensor([2.0, math.nan, math.inf], requires_grad=True)
    total = masked(values, torch.tensor([True, False, False])).exp().sum()
    total.backward()
    assert total.item() == pytest.approx(math.exp(2.0) + 2.0)
    assert values.grad.tolist() == pytest.approx([math.exp(2.0), 0.0, 0.0])
