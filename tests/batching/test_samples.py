import numpy as np
import pytest
from batching.groups import rollout, scored_group

from headrace.algorithms.advantages import batch_scaled_advantages, centred_advantages, group_scaled_advantages
from headrace.batching.samples import row_of, trainable_rewards, with_advantages


def test_a_truncated_completion_is_what_the_engine_says_it_is():
    cut_off, complete = rollout(3, "length"), rollout(5, "stop")
    group = scored_group(0, [cut_off, complete], [1.0, 0.5])
    assert trainable_rewards(group, mask_truncated_completions=True) == [None, 0.5]
    assert trainable_rewards(group, mask_truncated_completions=False) == [1.0, 0.5]


@pytest.mark.parametrize("advantages_of", [centred_advantages, group_scaled_advantages, batch_scaled_advantages])
def test_the_reward_of_a_masked_completion_moves_nobody(advantages_of):
    def advantages(masked_reward):
        rollouts = [rollout(4), rollout(4), rollout(4, "length")]
        groups = [scored_group(0, rollouts, [1.0, 0.0, masked_reward]), scored_group(1, [rollout(2), rollout(2)], [0.0, 3.0])]
        trained = with_advantages(groups, advantages_of=advantages_of, mask_truncated_completions=True)
        return [list(group.advantages) for group in trained]

    assert advantages(1.0) == advantages(100.0)
    assert advantages(1.0)[0][2] is None


def test_a_failed_reward_leaves_the_baseline_to_its_siblings():
    group = scored_group(0, [rollout(2), rollout(3), rollout(4), rollout(5)], [1.0, 0.0, None, 0.0])
    [trained] = with_advantages([group], advantages_of=centred_advantages, mask_truncated_completions=False)
    assert trained.advantages == pytest.approx([2 / 3, -1 / 3, None, -1 / 3])
    row = row_of(trained)
    assert row is not None
    assert [len(sample.completion_ids) for sample in row.samples] == [2, 3, 5]
    assert [sample.advantage for sample in row.samples] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_a_row_carries_what_was_sampled():
    group = scored_group(9, [rollout(2, version=4), rollout(3, version=5)], [1.0, 0.0], prompt_length=6)
    [trained] = with_advantages([group], advantages_of=centred_advantages, mask_truncated_completions=False)
    row = row_of(trained)
    assert row is not None
    assert (row.group_id, row.prompt_ids, row.num_tokens, row.num_loss_tokens) == (9, tuple(range(6)), 11, 5)
    for sample, source in zip(row.samples, group.rollouts, strict=True):
        for name in ("completion_ids", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(sample, name), getattr(source, name))


def test_a_group_without_any_usable_rollout_has_no_row():
    group = scored_group(0, [rollout(2, "length"), rollout(3, "length")], [1.0, 0.0])
    [trained] = with_advantages([group], advantages_of=group_scaled_advantages, mask_truncated_completions=True)
    assert list(trained.advantages) == [None, None]
    assert row_of(trained) is None
