import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.ratios import Sequences, log_ratios, masked, ratios, sequence_ratios, token_ratios


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


def test_sums_and_means_of_sequences_stand_at_each_of_their_tokens():
    sequences = Sequences(torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([True, True, True, False, True, False]))
    values = torch.tensor([1.0, 3.0, 5.0, math.nan, 6.0, math.inf], requires_grad=True)
    assert sequences.lengths.tolist() == [2, 2, 0]
    assert sequences.sums(values).tolist() == [4.0, 4.0, 11.0, 11.0, 11.0, 0.0]
    means = sequences.means(values)
    assert means.tolist() == [2.0, 2.0, 5.5, 5.5, 5.5, 0.0]
    means[2].backward()
    assert values.grad.tolist() == [0.0, 0.0, 0.5, 0.0, 0.5, 0.0]


def test_no_sequences_have_no_sums():
    sequences = Sequences(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool))
    assert sequences.means(torch.zeros(0)).tolist() == []


def test_a_sequences_ratio_is_the_geometric_mean_of_its_loss_tokens():
    sequences = Sequences(torch.tensor([0, 0, 0, 1]), torch.tensor([True, True, False, True]))
    probabilities, others = torch.tensor([0.8, 0.2, 0.9, 0.3]), torch.tensor([0.4, 0.8, 0.1, 0.1])
    expected = [math.sqrt(2.0 * 0.25)] * 3 + [3.0]
    assert sequence_ratios(probabilities.log(), others.log(), sequences).tolist() == pytest.approx(expected, rel=1e-6)
    assert token_ratios(probabilities.log(), others.log(), sequences).tolist() == pytest.approx([2.0, 0.25, 9.0, 3.0], rel=1e-6)


@given(st.integers(1, 300), st.floats(-3.0, 3.0))
def test_a_sequences_ratio_does_not_depend_on_its_length(length, log_ratio):
    sequences = Sequences(torch.zeros(length, dtype=torch.long), torch.ones(length, dtype=torch.bool))
    found = sequence_ratios(torch.full((length,), log_ratio, dtype=torch.float64), torch.zeros(length, dtype=torch.float64), sequences)
    assert found[0].item() == pytest.approx(math.exp(log_ratio), rel=1e-9)
