import math
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.advantages import batch_scaled_advantages, centred_advantages, group_scaled_advantages

ALL = (centred_advantages, group_scaled_advantages, batch_scaled_advantages)

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
    for advantages_of in (centred_advantages, group_scaled_advantages):
        assert advantages_of(groups) == [advantages_of([group])[0] for group in groups]
    assert batch_scaled_advantages(groups) != [batch_scaled_advantages([group])[0] for group in groups]


@given(groups_of_rewards)
def test_advantages_equal_the_definition(groups):
    def expected(group, reward, present, divisor):
        return None if reward is None else (reward - statistics.fmean(present)) / divisor

    everything = [reward for reward in flat(groups) if reward is not None]
    batch_deviation = statistics.stdev(everything) if len(everything) > 1 else 0.0
    for group, centred, scaled, batch_scaled in zip(groups, *(function(groups) for function in ALL), strict=True):
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
    for advantages_of in ALL:
        for group in advantages_of(groups):
            assert math.fsum(advantage for advantage in group if advantage is not None) == pytest.approx(0.0, abs=1e-7)


def test_advantages_need_no_torch():
    script = "import sys, headrace.algorithms.advantages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
