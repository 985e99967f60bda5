import math
import statistics
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.advantages import (
    batch_scaled_advantages,
    centred_advantages,
    group_scaled_advantages,
    leave_one_out_advantages,
    length_weighted_advantages,
    pass_at_k_advantages,
)


def weighted_by_length(groups):
    """Length-weighted advantages of rollouts that are longer the higher their reward, so that lengths move with the rollouts."""
    return length_weighted_advantages(
        groups, [[1 + round(abs(reward or 0.0)) if math.isfinite(reward or 0.0) else 7 for reward in group] for group in groups]
    )


def best_of_two(groups):
    return pass_at_k_advantages(groups, k=2)


SCALED = (centred_advantages, group_scaled_advantages, batch_scaled_advantages)
CENTRED_ON_THE_MEAN = (*SCALED, leave_one_out_advantages)
ALL = (*CENTRED_ON_THE_MEAN, weighted_by_length, best_of_two)

rewards = st.floats(-10, 10).map(lambda reward: round(reward, 3))
maybe_rewards = st.one_of(st.none(), rewards)
groups_of_rewards = st.lists(st.lists(maybe_rewards, min_size=1, max_size=6), min_size=1, max_size=5)


def flat(groups):
    return [advantage for group in groups for advantage in group]


def approx(groups):
    return [[None if advantage is None else pytest.approx(advantage, rel=1e-9, abs=1e-9) for advantage in group] for group in groups]


def test_a_rollout_that_takes_no_part_is_left_out_of_mean_and_deviation():
    assert centred_advantages([[1.0, None, 0.0, 0.0]]) == approx([[2 / 3, None, -1 / 3, -1 / 3]])
    third_of_a_root = 1 / math.sqrt(3)
    assert group_scaled_advantages([[1.0, None, 0.0, 0.0]], epsilon=0.0) == approx(
        [[2 * third_of_a_root, None, -third_of_a_root, -third_of_a_root]]
    )
    assert centred_advantages([[1.0, 0.0, None, None]]) == [[0.5, -0.5, None, None]]


def test_epsilon_is_added_to_the_deviation():
    [[high, low]] = group_scaled_advantages([[1.0, 0.0]])
    assert high == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4), rel=1e-12)
    assert low == -high


@pytest.mark.parametrize("advantages_of", ALL)
def test_a_lone_survivor_gets_zero_and_an_empty_group_nothing(advantages_of):
    assert advantages_of([[1.0, None, None, None], [None, None], []]) == [[0.0, None, None, None], [None, None], []]


@pytest.mark.parametrize("advantages_of", ALL)
@pytest.mark.parametrize(
    ("reward", "size"), [(0.1, 8), (0.1, 10), (0.7, 7), (1 / 3, 8), (0.1, 3), (0.9, 9), (5.3, 13), (float(np.float32(0.1)), 10)]
)
def test_constant_groups_get_exactly_zero(advantages_of, reward, size):
    assert flat(advantages_of([[reward] * size, [1.0, 0.0]]))[:size] == [0.0] * size
    assert advantages_of([[reward] * size]) == [[0.0] * size]


@pytest.mark.parametrize("advantages_of", ALL)
def test_each_prompt_has_its_own_baseline(advantages_of):
    assert flat(advantages_of([[1.0] * 4, [0.0] * 4])) == [0.0] * 8
    uneven = advantages_of([[0.0, 1.0, 1.0, 0.0], [5.0, 5.0, 5.0], [3.0], [1.0, 0.0, 0.0, 0.0]])
    assert [len(group) for group in uneven] == [4, 3, 1, 4]
    assert uneven[1:3] == [[0.0] * 3, [0.0]]
    assert [advantage > 0 for advantage in uneven[0]] == [False, True, True, False]


@pytest.mark.parametrize("advantages_of", ALL)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_takes_no_part(advantages_of, bad):
    assert advantages_of([[1.0, bad, 0.0], [bad, 2.0, 4.0]]) == advantages_of([[1.0, None, 0.0], [None, 2.0, 4.0]])


def test_the_batch_deviation_is_that_of_all_rewards():
    assert batch_scaled_advantages([[1.0, 0.0], [1.0, 1.0, None]], epsilon=0.0) == approx([[1.0, -1.0], [0.0, 0.0, None]])


def test_only_the_batch_deviation_depends_on_the_other_groups():
    groups = [[1.0, 0.0, 0.0], [3.0, 9.0], [2.0, 2.0, 1.0]]
    for advantages_of in ALL:
        if advantages_of is not batch_scaled_advantages:
            assert advantages_of(groups) == [advantages_of([group])[0] for group in groups]
    assert batch_scaled_advantages(groups) != [batch_scaled_advantages([group])[0] for group in groups]


@given(groups_of_rewards)
def test_advantages_equal_the_definition(groups):
    def expected(group, reward, present, divisor):
        return None if reward is None else (reward - statistics.fmean(present)) / divisor

    everything = [reward for reward in flat(groups) if reward is not None]
    batch_deviation = statistics.stdev(everything) if len(everything) > 1 else 0.0
    for group, centred, scaled, batch_scaled in zip(groups, *(function(groups) for function in SCALED), strict=True):
        present = [reward for reward in group if reward is not None]
        deviation = statistics.stdev(present) if len(present) > 1 else 0.0
        assert [centred] == approx([[expected(group, reward, present, 1.0) for reward in group]])
        assert [scaled] == approx([[expected(group, reward, present, deviation + 1e-4) for reward in group]])
        assert [batch_scaled] == approx([[expected(group, reward, present, batch_deviation + 1e-4) for reward in group]])


@given(groups_of_rewards, st.floats(-5, 5), st.floats(0.1, 10))
def test_scaled_advantages_ignore_shift_and_scale(groups, shift, scale):
    moved = [[None if reward is None else shift + scale * reward for reward in group] for group in groups]
    for advantages_of in (group_scaled_advantages, batch_scaled_advantages):
        plain = advantages_of(groups, epsilon=1e-12)
        for before, after in zip(flat(plain), flat(advantages_of(moved, epsilon=1e-12)), strict=True):
            # Two equal rewards may differ by rounding after the move, so nearly constant groups are left to the tests above.
            if before is not None and before != 0.0:
                assert after == pytest.approx(before, rel=1e-6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(groups_of_rewards, st.randoms(use_true_random=False))
def test_advantages_follow_their_rollouts_when_these_are_permuted(groups, random):
    for advantages_of in ALL:
        orders = [random.sample(range(len(group)), len(group)) for group in groups]
        shuffled = [[group[index] for index in order] for group, order in zip(groups, orders, strict=True)]
        advantages = advantages_of(groups)
        moved = [[group[index] for index in order] for group, order in zip(advantages, orders, strict=True)]
        assert advantages_of(shuffled) == approx(moved)


@given(groups_of_rewards)
def test_advantages_of_a_group_add_up_to_zero(groups):
    for advantages_of in CENTRED_ON_THE_MEAN:
        for group in advantages_of(groups):
            assert math.fsum(advantage for advantage in group if advantage is not None) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("advantages_of", ALL)
def test_rounding_does_not_make_a_signal(advantages_of):
    """0.1 + 0.2 is 0.30000000000000004: a group of equal rewards, had it not been for the sum."""
    assert flat(advantages_of([[0.1 + 0.2, 0.3, 0.3], [1.0, 0.0]]))[:3] == [0.0] * 3


@given(groups_of_rewards, st.randoms(use_true_random=False))
def test_the_order_of_groups_does_not_matter(groups, random):
    order = random.sample(range(len(groups)), len(groups))
    for advantages_of in ALL:
        assert advantages_of([groups[index] for index in order]) == approx([advantages_of(groups)[index] for index in order])


@given(groups_of_rewards, st.floats(-5, 5), st.floats(0.1, 10))
def test_a_shift_of_all_rewards_changes_no_advantage_and_a_scale_changes_it_alike(groups, shift, scale):
    lengths = [[1 + place for place, _ in enumerate(group)] for group in groups]

    def moved(factor, summand):
        return [[None if reward is None else factor * reward + summand for reward in group] for group in groups]

    for advantages_of in (centred_advantages, leave_one_out_advantages, lambda some: length_weighted_advantages(some, lengths)):
        plain = advantages_of(groups)
        assert advantages_of(moved(1.0, shift)) == approx(plain)
        scaled = [[None if advantage is None else scale * advantage for advantage in group] for group in plain]
        assert advantages_of(moved(scale, 0.0)) == approx(scaled)


@given(groups_of_rewards, st.floats(-5, 5), st.floats(0.1, 10))
def test_the_best_of_k_ignores_shift_and_scale(groups, shift, scale):
    moved = [[None if reward is None else scale * reward + shift for reward in group] for group in groups]
    pairs = zip(*(flat(pass_at_k_advantages(some, k=2, epsilon=1e-12)) for some in (groups, moved)), strict=True)
    assert all(after == (None if before is None else pytest.approx(before, rel=1e-6, abs=1e-6)) for before, after in pairs)


def test_degrees_of_freedom_and_epsilon_can_be_chosen():
    [[high, _]] = group_scaled_advantages([[1.0, 0.0]], ddof=0, epsilon=1e-9)
    assert high == pytest.approx(1.0)
    [[high, _]] = batch_scaled_advantages([[1.0, 0.0]], ddof=0, epsilon=0.5)
    assert high == pytest.approx(0.5)


def test_leave_one_out_values():
    assert leave_one_out_advantages([[1.0, 2.0, 3.0, 4.0]]) == approx([[-2.0, -2 / 3, 2 / 3, 2.0]])
    assert leave_one_out_advantages([[10.0, 20.0, 30.0]]) == approx([[-15.0, 0.0, 15.0]])
    assert leave_one_out_advantages([[10.0, None, 20.0, 30.0]]) == approx([[-15.0, None, 0.0, 15.0]])


@given(groups_of_rewards)
def test_the_two_forms_of_leave_one_out_agree(groups):
    for group, advantages in zip(groups, leave_one_out_advantages(groups), strict=True):
        present = [reward for reward in group if reward is not None]
        for place, (reward, advantage) in enumerate(zip(group, advantages, strict=True)):
            if reward is None:
                assert advantage is None
            elif len(present) == 1:
                assert advantage == 0.0
            else:
                others = [other for other_place, other in enumerate(group) if other is not None and other_place != place]
                assert advantage == pytest.approx(reward - statistics.fmean(others), rel=1e-9, abs=1e-9)


def test_the_length_weighted_baseline_by_hand():
    """A long rollout with reward 1 and a short one with 0, tokens 9 and 1: the baseline is 0.9."""
    assert length_weighted_advantages([[1.0, 0.0]], [[9, 1]]) == approx([[0.1, -0.9]])
    assert length_weighted_advantages([[1.0, None, 0.0]], [[9, 50, 1]]) == approx([[0.1, None, -0.9]])


@given(groups_of_rewards, st.integers(1, 500))
def test_at_equal_lengths_the_weighted_baseline_is_the_mean(groups, length):
    lengths = [[length] * len(group) for group in groups]
    assert length_weighted_advantages(groups, lengths) == approx(centred_advantages(groups))


@given(st.lists(rewards, min_size=1, max_size=6), st.integers(1, 6))
def test_pass_at_k_equals_the_enumeration_of_subsets(group, k):
    [advantages] = pass_at_k_advantages([group], k=k)
    k = max(min(k, len(group) - 1), 1)
    best = {subset: max(group[place] for place in subset) for subset in combinations(range(len(group)), k)}
    mean, deviation = statistics.fmean(best.values()), statistics.pstdev(best.values())
    for place, advantage in enumerate(advantages):
        with_it = [value for subset, value in best.items() if place in subset]
        expected = 0.0 if len(set(group)) == 1 else (statistics.fmean(with_it) - mean) / (deviation + 1e-4)
        assert advantage == pytest.approx(expected, rel=1e-7, abs=1e-7)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 8))
def test_pass_at_k_of_right_and_wrong_is_the_analytic_form(num_right, num_wrong, k):
    count = num_right + num_wrong
    k = min(k, max(count - 1, 1))
    [advantages] = pass_at_k_advantages([[1.0] * num_right + [0.0] * num_wrong], k=k, epsilon=1e-12)
    mean = 1 - math.comb(num_wrong, k) / math.comb(count, k)
    deviation = math.sqrt(mean * (1 - mean))
    if deviation == 0.0:
        assert advantages == pytest.approx([0.0] * count, abs=1e-3)
        return
    right = (1 - mean) / deviation
    wrong = (1 - mean - math.comb(num_wrong - 1, k - 1) / math.comb(count - 1, k - 1)) / deviation
    assert advantages == pytest.approx([right] * num_right + [wrong] * num_wrong, rel=1e-6, abs=1e-9)


def test_best_of_one_is_the_reward_against_mean_and_deviation():
    [found], [scaled] = pass_at_k_advantages([[1.0, 0.0, 5.0]], k=1), group_scaled_advantages([[1.0, 0.0, 5.0]], ddof=0)
    assert found == pytest.approx(scaled)


def test_a_group_of_k_or_fewer_takes_one_less_than_there_are():
    assert pass_at_k_advantages([[1.0, None, 0.0]], k=4) == pass_at_k_advantages([[1.0, None, 0.0]], k=1)
    assert pass_at_k_advantages([[1.0, None, 0.0, 0.0, 3.0]], k=4) == pass_at_k_advantages([[1.0, None, 0.0, 0.0, 3.0]], k=3)


def test_advantages_need_no_torch():
    script = "import sys, headrace.algorithms.advantages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
