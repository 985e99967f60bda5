from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from batching.groups import rollout, scored_group

from headrace.algorithms.advantages import batch_scaled_advantages, centred_advantages, group_scaled_advantages, pass_at_k_advantages
from headrace.algorithms.credit import Credit, trainable_rewards
from headrace.algorithms.shaping import overlong_penalty
from headrace.algorithms.token_advantages import baseline_whitened_advantages, no_outcome_advantages, outcome_advantages, token_rewards

CENTRED = partial(outcome_advantages, advantages_of=lambda rewards, lengths: centred_advantages(rewards))
BATCH_SCALED = partial(outcome_advantages, advantages_of=lambda rewards, lengths: batch_scaled_advantages(rewards))


def scored_by_others(group, *, teacher=None, reference=None):
    def arrays(values):
        return None if values is None else tuple(np.array(each, np.float32) for each in values)

    return replace(group, teacher_logprobs=arrays(teacher), reference_logprobs=arrays(reference))


def listed(advantages):
    return [[None if array is None else pytest.approx(array.tolist()) for array in group] for group in advantages]


def test_a_truncated_completion_is_what_the_engine_says_it_is():
    cut_off, complete = rollout(3, "length"), rollout(5, "stop")
    group = scored_group(0, [cut_off, complete], [1.0, 0.5])
    assert trainable_rewards(group, mask_truncated_completions=True) == [None, 0.5]
    assert trainable_rewards(group, mask_truncated_completions=False) == [1.0, 0.5]


@pytest.mark.parametrize("advantages_of", [centred_advantages, group_scaled_advantages, batch_scaled_advantages])
def test_the_reward_of_a_masked_completion_moves_nobody(advantages_of):
    of_tokens = partial(outcome_advantages, advantages_of=lambda rewards, lengths: advantages_of(rewards))
    credit = Credit(advantages_of=of_tokens, mask_truncated_completions=True)

    def advantages(masked_reward):
        rollouts = [rollout(4), rollout(4), rollout(4, "length")]
        groups = [scored_group(0, rollouts, [1.0, 0.0, masked_reward]), scored_group(1, [rollout(2), rollout(2)], [0.0, 3.0])]
        return [[None if array is None else array.tolist() for array in group] for group in credit(groups)]

    assert advantages(1.0) == advantages(100.0)
    assert advantages(1.0)[0][2] is None


def test_a_failed_reward_leaves_the_baseline_to_its_siblings():
    group = scored_group(0, [rollout(2), rollout(1), rollout(1), rollout(1)], [1.0, 0.0, None, 0.0])
    assert listed(Credit(advantages_of=CENTRED)([group])) == [[[2 / 3, 2 / 3], [-1 / 3], None, [-1 / 3]]]


def test_overlong_answers_are_worth_less():
    """Lengths 6, 8 and 10 of at most 10 with a buffer of 4: penalties 0, -0.5 and -1."""
    credit = Credit(advantages_of=token_rewards, overlong_penalty=partial(overlong_penalty, max_length=10, buffer=4))
    group = scored_group(0, [rollout(6), rollout(8), rollout(10), rollout(10)], [1.0, 1.0, 1.0, None])
    assert [None if array is None else float(array[-1]) for array in credit([group])[0]] == [1.0, 0.5, 0.0, None]


def test_the_penalty_of_each_token_is_taken_off_the_reward():
    group = scored_by_others(scored_group(0, [rollout(2), rollout(1)], [1.0, 0.0]), reference=[[-1.0, -0.5], [-2.5]])
    credit = Credit(advantages_of=token_rewards, reward_kl=lambda behaviour, reference: 0.1 * (behaviour - reference))
    assert listed(credit([group])) == [[[-0.05, 1.0], [-0.2]]]
    # The rollouts' sums are 1 - 0.05 and 0 - 0.2, their mean 0.375.
    of_rollouts = Credit(advantages_of=CENTRED, reward_kl=lambda behaviour, reference: 0.1 * (behaviour - reference))
    assert listed(of_rollouts([group])) == [[[0.575, 0.575], [-0.575]]]


def test_a_teacher_adds_to_whatever_the_outcome_says():
    """log π_behave is -0.5 everywhere."""
    group = scored_by_others(
        scored_group(0, [rollout(2), rollout(1), rollout(1)], [1.0, 0.0, None]), teacher=[[-0.5, -1.5], [-0.25], [0.0]]
    )
    alone = Credit(advantages_of=no_outcome_advantages, distillation_coefficient=1.0)
    assert listed(alone([group])) == [[[0.0, -1.0], [0.25], [0.5]]]
    both = Credit(advantages_of=CENTRED, distillation_coefficient=2.0)
    assert listed(both([group])) == [[[0.5, -1.5], [0.0], None]]


@pytest.mark.parametrize(
    "credit", [Credit(advantages_of=CENTRED, distillation_coefficient=1.0), Credit(advantages_of=CENTRED, reward_kl=np.subtract)]
)
def test_scores_that_are_missing_are_a_bug(credit):
    with pytest.raises(AssertionError, match="was not scored by the"):
        credit([scored_group(3, [rollout(1), rollout(1)], [1.0, 0.0])])


@pytest.mark.parametrize(
    ("totals", "finish_reasons", "masked", "differ"),
    [
        ([1.0, 0.0, 0.0], ["stop"] * 3, False, True),
        ([0.5, 0.5, 0.5], ["stop"] * 3, False, False),
        ([0.5, 0.5, None], ["stop"] * 3, False, False),
        ([0.5, None, None], ["stop"] * 3, False, False),
        ([None, None, None], ["stop"] * 3, False, False),
        ([1.0, 1.0, 0.0], ["stop", "stop", "length"], True, False),
        ([1.0, 1.0, 0.0], ["stop", "stop", "length"], False, True),
    ],
)
def test_a_group_has_a_signal_when_siblings_can_be_told_apart(totals, finish_reasons, masked, differ):
    group = scored_group(0, [rollout(2, reason) for reason in finish_reasons], totals)
    for advantages_of in (CENTRED, BATCH_SCALED, baseline_whitened_advantages):
        assert Credit(advantages_of=advantages_of, mask_truncated_completions=masked).has_signal(group) == differ


def test_the_signal_is_that_of_the_advantages_chosen():
    """The best of any 2 of 4 is right when 3 are, whoever is among them; a sum that rounds is no signal to anyone."""
    best_of_two = partial(outcome_advantages, advantages_of=lambda rewards, lengths: pass_at_k_advantages(rewards, k=2))
    three_right, rounded = ([scored_group(0, [rollout(2)] * len(totals), totals)] for totals in ([1.0, 1.0, 1.0, 0.0], [0.1 + 0.2, 0.3]))
    signals = [[Credit(advantages_of=each).has_signal(group) for [group] in (three_right, rounded)] for each in (CENTRED, best_of_two)]
    assert signals == [[True, False], [False, False]]
