from functools import partial

import numpy as np
import pytest
from batching.groups import rollout, scored_group

from headrace.algorithms.advantages import centred_advantages
from headrace.algorithms.credit import Credit
from headrace.algorithms.token_advantages import no_outcome_advantages, outcome_advantages
from headrace.batching.samples import row_of, with_advantages

CENTRED = Credit(advantages_of=partial(outcome_advantages, advantages_of=lambda rewards, lengths: centred_advantages(rewards)))


def test_a_rollout_without_an_advantage_is_left_out_of_the_row():
    group = scored_group(0, [rollout(2), rollout(3), rollout(4), rollout(5)], [1.0, 0.0, None, 0.0])
    [trained] = with_advantages([group], credit=CENTRED, shadow_credits={})
    row = row_of(trained)
    assert row is not None
    assert [len(sample.completion_ids) for sample in row.samples] == [2, 3, 5]
    assert [sample.advantages.tolist() for sample in row.samples] == [
        pytest.approx([2 / 3] * 2),
        pytest.approx([-1 / 3] * 3),
        pytest.approx([-1 / 3] * 5),
    ]


def test_a_row_carries_what_was_sampled():
    group = scored_group(9, [rollout(2, version=4), rollout(3, version=5)], [1.0, 0.0], prompt_length=6)
    [trained] = with_advantages([group], credit=CENTRED, shadow_credits={})
    row = row_of(trained)
    assert row is not None
    assert (row.group_id, row.prompt_ids, row.num_tokens, row.num_loss_tokens) == (9, tuple(range(6)), 11, 5)
    for sample, source in zip(row.samples, group.rollouts, strict=True):
        for name in ("completion_ids", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(sample, name), getattr(source, name))


def test_advantages_follow_their_groups_and_shadows_theirs():
    groups = [scored_group(0, [rollout(1), rollout(1)], [1.0, 0.0]), scored_group(1, [rollout(1), rollout(2)], [None, 4.0])]
    shadow = Credit(advantages_of=no_outcome_advantages)
    first, second = with_advantages(groups, credit=CENTRED, shadow_credits={"zero": shadow})
    assert [None if each is None else each.tolist() for each in first.advantages] == [[0.5], [-0.5]]
    assert [None if each is None else each.tolist() for each in second.advantages] == [None, [0.0, 0.0]]
    assert [None if each is None else each.tolist() for each in second.shadow_advantages["zero"]] == [[0.0], [0.0, 0.0]]
    row = row_of(second)
    assert row is not None
    assert [sample.shadow_advantages["zero"].tolist() for sample in row.samples if len(sample.completion_ids) == 2] == [[0.0, 0.0]]


def test_a_group_without_any_usable_rollout_has_no_row():
    group = scored_group(0, [rollout(2), rollout(3)], [None, None])
    [trained] = with_advantages([group], credit=CENTRED, shadow_credits={})
    assert list(trained.advantages) == [None, None]
    assert row_of(trained) is None
