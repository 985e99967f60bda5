import math

import pytest
import torch
from algorithms.token_losses import CORRECTIONS, random_proximal, random_tokens, slow_weight
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.algorithms.corrections import (
    geometric_masked,
    largest_trusted_distance,
    off_policy_sequences_kept,
    sequence_masked,
    sequence_truncated,
    token_masked,
    token_truncated,
    uncorrected,
)
from headrace.algorithms.ratios import Sequences

ALL_BOUNDED = (token_truncated, sequence_truncated, token_masked, sequence_masked, geometric_masked)


def one_sequence(*weights, mask=None):
    log_weights = torch.tensor(weights, dtype=torch.float64).log()
    index = torch.zeros(len(weights), dtype=torch.long)
    return log_weights, Sequences(index, torch.ones(len(weights), dtype=torch.bool) if mask is None else torch.tensor(mask))


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_weights_equal_the_slow_reference(name, seed):
    tokens = random_tokens(seed)
    log_weights = torch.where(tokens.mask, random_proximal(tokens) - tokens.behaviour_logprobs, 0.0)
    found = CORRECTIONS[name](log_weights, tokens.sequences)
    for sequence in range(6):
        members = [i for i in range(24) if tokens.mask[i] and tokens.sequence_index[i] == sequence]
        weights = [math.exp(float(log_weights[i])) for i in members]
        expected = [slow_weight(name, weights, place) for place in range(len(members))]
        assert found.weights[members].tolist() == pytest.approx(expected, rel=1e-9)
        assert found.kept[members].tolist() == [weight > 0 for weight in expected]


def test_uncorrected_tokens_weigh_1():
    found = uncorrected(*one_sequence(0.1, 9.0))
    assert (found.weights.tolist(), found.kept.tolist()) == ([1.0, 1.0], [True, True])


def test_truncation_cuts_and_keeps():
    found = token_truncated(*one_sequence(0.01, 0.5, 1.0, 5.0, 1e6), low=0.2, high=4.0)
    assert found.weights.tolist() == pytest.approx([0.2, 0.5, 1.0, 4.0, 4.0])
    assert found.kept.all()


def test_masking_leaves_out_on_both_sides_and_keeps_the_weight_inside():
    found = token_masked(*one_sequence(0.01, 0.5, 1.0, 5.0, 1e6), low=0.2, high=6.0)
    assert found.weights.tolist() == pytest.approx([0.0, 0.5, 1.0, 5.0, 0.0])
    assert found.kept.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("correction", [token_masked, sequence_masked, geometric_masked])
@pytest.mark.parametrize("weight", [0.5, 5.0])
def test_bounds_are_inclusive(correction, weight):
    log_weights, sequences = one_sequence(weight)
    bound = log_weights.exp().item()
    low, high = (bound, 9.0) if weight < 1 else (0.1, bound)
    found = correction(log_weights, sequences, low=low, high=high)
    assert (found.weights.tolist(), found.kept.tolist()) == ([bound], [True])
    beyond = correction(log_weights, sequences, low=low * (1 + 1e-9), high=high * (1 - 1e-9))
    assert (beyond.weights.tolist(), beyond.kept.tolist()) == ([0.0], [False])


def test_whole_sequences_by_hand():
    """Log-weights 0, 0.5 and 1: the product is e^1.5 = 4.48, the geometric mean e^0.5 = 1.65."""
    log_weights, sequences = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), one_sequence(1.0, 1.0, 1.0)[1]
    assert sequence_truncated(log_weights, sequences, low=0.0, high=9.0).weights.tolist() == pytest.approx([math.exp(1.5)] * 3)
    assert sequence_truncated(log_weights, sequences, low=0.0, high=2.0).weights.tolist() == [2.0] * 3
    assert not sequence_masked(log_weights, sequences, low=0.0, high=4.0).kept.any()
    kept = geometric_masked(log_weights, sequences, low=0.5, high=2.0)
    assert kept.weights.tolist() == pytest.approx([1.0, math.exp(0.5), math.exp(1.0)])
    assert not geometric_masked(log_weights, sequences, low=0.5, high=1.6).kept.any()


@given(st.integers(1, 200), st.floats(0.7, 1.4))
def test_the_geometric_mean_does_not_depend_on_length_and_the_product_does(length, weight):
    assume(abs(weight - 1.2) > 1e-6)
    assume(abs(length * math.log(weight) - math.log(3)) > 1e-6)
    log_weights, sequences = one_sequence(*[weight] * length)
    assert geometric_masked(log_weights, sequences, low=0.0, high=1.2).kept[0].item() == (weight <= 1.2)
    assert sequence_masked(log_weights, sequences, low=0.0, high=3.0).kept[0].item() == (weight**length <= 3.0)


@pytest.mark.parametrize("correction", ALL_BOUNDED)
@given(log_weights=st.lists(st.floats(-200.0, 200.0), min_size=1, max_size=8), low=st.floats(0.0, 0.9), high=st.floats(1.01, 20.0))
def test_weights_are_finite_carry_no_gradient_and_stay_in_their_bounds(correction, log_weights, low, high):
    values = torch.tensor(log_weights, dtype=torch.float64, requires_grad=True)
    sequences = Sequences(torch.zeros(len(log_weights), dtype=torch.long), torch.ones(len(log_weights), dtype=torch.bool))
    found = correction(values, sequences, low=low, high=high)
    assert not found.weights.requires_grad
    assert found.weights.isfinite().all()
    assert found.weights[~found.kept].eq(0).all()
    if correction is not geometric_masked:
        assert (found.weights[found.kept] >= low).all()
        assert (found.weights[found.kept] <= high).all()


@pytest.mark.parametrize("correction", ALL_BOUNDED)
def test_bounds_far_away_change_nothing(correction):
    log_weights, sequences = one_sequence(0.2, 1.0, 3.0)
    found = correction(log_weights, sequences, low=0.0, high=1e8)
    product = 0.2 * 1.0 * 3.0
    expected = [product] * 3 if correction in (sequence_truncated, sequence_masked) else [0.2, 1.0, 3.0]
    assert found.weights.tolist() == pytest.approx(expected)
    assert found.kept.all()


@pytest.mark.parametrize("correction", ALL_BOUNDED)
def test_nan_is_kept_so_that_it_shows(correction):
    _, sequences = one_sequence(1.0, 1.0)
    found = correction(torch.tensor([math.nan, 0.0]), sequences, low=0.5, high=2.0)
    assert found.kept.all()
    assert found.weights.isnan().any()


def test_the_expected_weight_under_the_sampler_is_one():
    generator = torch.Generator().manual_seed(0)
    proximal, behaviour = torch.randn(2, 7, dtype=torch.float64, generator=generator).log_softmax(-1)
    sequences = Sequences(torch.arange(7), torch.ones(7, dtype=torch.bool))
    weights = token_truncated(proximal - behaviour, sequences, low=0.0, high=1e6).weights
    assert (behaviour.exp() * weights).sum().item() == pytest.approx(1.0, rel=1e-12)


def test_a_trajectory_of_several_versions_has_one_behaviour_policy():
    """AReaL, Proposition 1, enumerated: the first token is drawn by one version, the second by the next, which has seen the first."""
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(4, dtype=torch.float64, generator=generator), torch.randn(4, 4, dtype=torch.float64, generator=generator)
    proximal_first, proximal_second = torch.randn_like(first), torch.randn_like(second)
    behaviour = torch.stack([first.log_softmax(-1)[:, None].expand(4, 4), second.log_softmax(-1)], dim=-1).reshape(-1)
    proximal = torch.stack([proximal_first.log_softmax(-1)[:, None].expand(4, 4), proximal_second.log_softmax(-1)], dim=-1).reshape(-1)
    sequences = Sequences(torch.arange(16).repeat_interleave(2), torch.ones(32, dtype=torch.bool))
    weights = sequence_truncated(proximal - behaviour, sequences, low=0.0, high=1e6).weights[::2]
    worth = torch.randn(16, dtype=torch.float64, generator=generator)
    sampled, wanted = (logprobs.reshape(16, 2).sum(dim=1).exp() for logprobs in (behaviour, proximal))
    assert (sampled * weights).sum().item() == pytest.approx(1.0, rel=1e-12)
    assert (sampled * weights * worth).sum().item() == pytest.approx((wanted * worth).sum().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("advantages", "distance", "kept"),
    [
        ([-1.0, -1.0], [0.4, 0.8], [False, False]),  # mean 0.6
        ([-1.0, -1.0], [0.4, 0.6], [True, True]),  # mean 0.5 is not above
        ([1.0, 1.0], [0.4, 0.8], [True, True]),  # what went well is kept
        ([-3.0, 1.0], [0.4, 0.8], [False, False]),
        ([-1.0, 3.0], [0.4, 0.8], [True, True]),
    ],
)
def test_a_sequence_that_went_wrong_and_became_unlikely_is_left_out(advantages, distance, kept):
    behaviour = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    logprobs = behaviour - torch.tensor(distance, dtype=torch.float64)
    sequences = one_sequence(1.0, 1.0)[1]
    found = off_policy_sequences_kept(logprobs, behaviour, torch.tensor(advantages).double(), sequences, threshold=0.5 + 1e-9)
    assert found.tolist() == kept


def greedily_trusted(distances, threshold):
    """M2PO's loop: leave the farthest token out until the mean is small enough."""
    left = sorted(distances)
    while left and sum(left) / len(left) > threshold:
        left.pop()
    return left


@given(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=30, unique=True), st.floats(0.001, 3.0))
def test_the_trusted_distance_equals_the_greedy_loop(distances, threshold):
    running_means = [sum(sorted(distances)[:count]) / count for count in range(1, len(distances) + 1)]
    assume(all(abs(mean - threshold) > 1e-9 for mean in running_means))
    distance = largest_trusted_distance(torch.tensor(distances, dtype=torch.float64), threshold=threshold)
    assert sorted(each for each in distances if each <= distance) == greedily_trusted(distances, threshold)


@given(st.lists(st.sampled_from([0.0, 0.01, 0.06, 0.5, 400.0]), min_size=1, max_size=12), st.floats(0.001, 0.6))
def test_equally_far_tokens_are_left_out_together_and_the_mean_holds(distances, threshold):
    distance = largest_trusted_distance(torch.tensor(distances, dtype=torch.float64), threshold=threshold)
    trusted = [each for each in distances if each <= distance]
    assert sum(trusted) <= threshold * len(trusted) + 1e-12
    farther = [each for each in distances if each > distance]
    if farther:
        more = trusted + [each for each in farther if each == min(farther)]
        assert sum(more) > threshold * len(more) - 1e-12


def test_trusted_distances_by_hand():
    assert largest_trusted_distance(torch.tensor([0.0, 0.01, 0.09]), threshold=0.04) == math.inf  # mean 0.0333
    assert largest_trusted_distance(torch.tensor([0.0, 0.01, 0.25]), threshold=0.04) == pytest.approx(0.01)
    assert largest_trusted_distance(torch.tensor([0.5, 0.25]), threshold=0.04) < 0
    assert largest_trusted_distance(torch.tensor([0.25, 0.0, 0.0, 0.75]).double(), threshold=0.25) == math.inf  # exactly the threshold
    assert largest_trusted_distance(torch.tensor([]), threshold=0.04) == math.inf
