import math
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.advantages import centred_advantages, length_weighted_advantages
from headrace.algorithms.token_advantages import (
    Outcomes,
    baseline_whitened_advantages,
    generalized_advantages,
    no_outcome_advantages,
    outcome_advantages,
    reverse_kl_advantages,
    token_rewards,
    whitened_advantages,
)

number = st.floats(-5.0, 5.0).map(lambda value: round(value, 3))
groups_of_outcomes = st.lists(
    st.lists(st.tuples(st.one_of(st.none(), number), st.lists(number, min_size=1, max_size=4)), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
).map(lambda groups: [with_penalties([reward for reward, _ in group], [penalty for _, penalty in group]) for group in groups])


def with_penalties(rewards, penalties):
    return Outcomes(
        rewards=rewards, lengths=[len(each) for each in penalties], penalties=[np.array(each, np.float32) for each in penalties]
    )


def plain(rewards, lengths):
    return Outcomes(rewards=rewards, lengths=lengths)


def listed(groups):
    return [[None if array is None else pytest.approx(array.tolist(), rel=1e-4, abs=1e-4) for array in group] for group in groups]


def tokens_in(groups):
    return [float(value) for group in groups for array in group if array is not None for value in array]


def test_every_token_of_a_rollout_has_the_rollouts_advantage():
    found = outcome_advantages([plain([1.0, None, 0.0], [2, 3, 1])], advantages_of=lambda rewards, _: centred_advantages(rewards))
    assert [None if array is None else array.tolist() for array in found[0]] == [[0.5, 0.5], None, [-0.5]]
    assert found[0][0].dtype == np.float32


def test_rewards_are_less_their_rollouts_penalties_and_lengths_are_passed_on():
    group = with_penalties([1.0, 1.0, None], [[0.25, 0.25], [0.1], [9.0]])
    assert group.penalised_rewards == [pytest.approx(0.5), pytest.approx(0.9), None]
    [found] = outcome_advantages([group], advantages_of=length_weighted_advantages)
    baseline = (2 * 0.5 + 1 * 0.9) / 3
    assert [None if array is None else array.tolist() for array in found] == [
        pytest.approx([0.5 - baseline] * 2, rel=1e-5),
        pytest.approx([0.9 - baseline], rel=1e-5),
        None,
    ]


def test_without_outcomes_every_rollout_takes_part_with_zero():
    found = no_outcome_advantages([plain([1.0, None], [2, 1])])
    assert [array.tolist() for array in found[0]] == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_the_reward_is_earned_at_the_last_token_and_the_penalty_at_each(reward):
    group = with_penalties([2.0, reward], [[0.5, -0.25, 1.0], [0.5]])
    [[first, second]] = token_rewards([group])
    assert first.tolist() == [-0.5, 0.25, 1.0]
    assert second is None
    assert token_rewards([plain([2.0], [3])])[0][0].tolist() == [0.0, 0.0, 2.0]


def slow_whitened(groups):
    """REINFORCE++ in plain Python: returns of every token, less their mean, over their deviation."""
    returns = [
        [
            None if reward is None else [reward - sum(map(float, penalty[place:])) for place in range(len(penalty))]
            for reward, penalty in zip(group.rewards, group.penalties, strict=True)
        ]
        for group in groups
    ]
    tokens = [value for group in returns for rollout in group if rollout is not None for value in rollout]
    if not tokens:
        return returns
    mean, deviation = statistics.fmean(tokens), math.sqrt(statistics.pvariance(tokens) + 1e-8)
    return [[None if rollout is None else [(value - mean) / deviation for value in rollout] for rollout in group] for group in returns]


@given(groups_of_outcomes)
@settings(deadline=None)
def test_whitened_advantages_equal_the_slow_reference(groups):
    found, expected = whitened_advantages(groups), slow_whitened(groups)
    tokens = tokens_in(found)
    if not tokens or np.ptp(tokens) == 0 or max(map(abs, tokens)) > 1e3:
        return
    for of_group, expected_group in zip(found, expected, strict=True):
        for array, rollout in zip(of_group, expected_group, strict=True):
            assert (array is None) == (rollout is None)
            assert array is None or array.tolist() == pytest.approx(rollout, rel=1e-3, abs=1e-3)


@given(groups_of_outcomes)
@settings(deadline=None)
def test_whitened_tokens_have_mean_0_and_deviation_1(groups):
    for whitened in (whitened_advantages, baseline_whitened_advantages):
        tokens = tokens_in(whitened(groups))
        if tokens and np.ptp(tokens) > 0.1:
            assert np.mean(tokens) == pytest.approx(0.0, abs=1e-4)
            assert np.std(tokens) == pytest.approx(1.0, abs=1e-2)


def test_whitening_by_hand():
    """Tokens 1, 1, 1 and 0: mean 0.75, deviation 0.433."""
    found = whitened_advantages([plain([1.0], [3]), plain([0.0, None], [1, 5])])
    assert listed(found) == [[[0.57735] * 3], [[-1.73205], None]]
    # Less the groups' means, which are 0.5 and 4: tokens 0.5, -0.5, -0.5, -1, 1.
    found = baseline_whitened_advantages([plain([1.0, 0.0], [1, 2]), plain([3.0, 5.0], [1, 1])])
    deviation = math.sqrt(statistics.pvariance([0.5, -0.5, -0.5, -1.0, 1.0]))
    mean = -0.1
    assert tokens_in(found) == pytest.approx([(value - mean) / deviation for value in (0.5, -0.5, -0.5, -1.0, 1.0)], rel=1e-4)


@pytest.mark.parametrize("whitened", [whitened_advantages, baseline_whitened_advantages])
def test_equal_rewards_whiten_to_exactly_zero(whitened):
    assert tokens_in(whitened([plain([0.1, 0.1], [2, 3]), plain([0.1], [1])])) == [0.0] * 6
    assert whitened([plain([None, None], [2, 3])]) == [[None, None]]
    assert tokens_in(baseline_whitened_advantages([plain([0.1, 0.1], [2, 3]), plain([0.9], [1])])) == [0.0] * 6


@given(groups_of_outcomes, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=30)
def test_the_order_of_groups_does_not_matter(groups, random):
    order = random.sample(range(len(groups)), len(groups))
    for function in (whitened_advantages, baseline_whitened_advantages, token_rewards, no_outcome_advantages):
        found = function(groups)
        if max(map(abs, tokens_in(found)), default=0.0) < 1e3:
            assert function([groups[index] for index in order]) == listed([found[index] for index in order])


def test_a_teachers_opinion_by_hand():
    found = reverse_kl_advantages(np.array([-1.0, -2.0], np.float32), np.array([-3.0, -1.5], np.float32), coefficient=0.5)
    assert found.tolist() == [-1.0, 0.25]
    assert found.dtype == np.float32


def slow_generalized(rewards, values, gamma, lam):
    """The sum Σ_l (γλ)^l δ_{t+l}, written out."""
    following = [*values[1:], 0.0]
    deltas = [reward + gamma * later - value for reward, later, value in zip(rewards, following, values, strict=True)]
    return [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, len(deltas))) for t in range(len(deltas))]


@given(st.lists(st.tuples(number, number), min_size=1, max_size=8), st.floats(0.1, 1.0), st.floats(0.0, 1.0))
def test_generalized_advantages_equal_the_direct_sums(steps, gamma, lam):
    rewards, values = (np.array(column, np.float32) for column in zip(*steps, strict=True))
    found = generalized_advantages(rewards, values, gamma=gamma, lam=lam)
    assert found.tolist() == pytest.approx(slow_generalized(rewards.tolist(), values.tolist(), gamma, lam), rel=1e-4, abs=1e-4)


def test_generalized_advantages_at_their_ends():
    rewards, values = np.array([0.5, 0.0, 2.0], np.float32), np.array([1.0, 3.0, -1.0], np.float32)
    whole = generalized_advantages(rewards, values, gamma=1.0, lam=1.0)
    assert whole.tolist() == pytest.approx([2.5 - 1.0, 2.0 - 3.0, 2.0 + 1.0])  # returns less values
    one_step = generalized_advantages(rewards, values, gamma=0.5, lam=0.0)
    assert one_step.tolist() == pytest.approx([0.5 + 1.5 - 1.0, -0.5 - 3.0, 2.0 + 1.0])


def test_token_advantages_need_no_torch():
    script = "import sys, headrace.algorithms.credit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
