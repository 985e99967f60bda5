import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from batching.groups import trained_group
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.micro_batches import plan_micro_batches


def ids_by_minibatch(micro_batches, num_minibatches):
    return [
        sorted({row.group_id for batch in micro_batches if batch.minibatch == minibatch for row in batch.rows})
        for minibatch in range(num_minibatches)
    ]


def shape(micro_batches):
    return [
        (batch.minibatch, [(row.group_id, [len(sample.completion_ids) for sample in row.samples]) for row in batch.rows])
        for batch in micro_batches
    ]


def test_groups_are_split_evenly_in_the_order_of_their_ids():
    groups = [trained_group(group_id, [4, 2]) for group_id in (11, 3, 8, 5, 20, 2)]
    plan = plan_micro_batches(groups, version=7, token_budget=20, num_minibatches=3)
    assert ids_by_minibatch(plan, 3) == [[2, 3], [5, 8], [11, 20]]
    assert [batch.minibatch for batch in plan] == sorted(batch.minibatch for batch in plan)
    assert {batch.version for batch in plan} == {7}


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=8),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_plan_does_not_depend_on_the_order_of_arrival(lengths, num_minibatches, random):
    groups = [trained_group(group_id, each) for group_id, each in enumerate(lengths)]
    shuffled = random.sample(groups, len(groups))
    options = {"version": 0, "token_budget": 24, "num_minibatches": num_minibatches}
    assert shape(plan_micro_batches(shuffled, **options)) == shape(plan_micro_batches(groups, **options))


@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=8))
def test_groups_that_stream_in_alone_bring_the_same_samples(lengths):
    groups = [trained_group(group_id, each) for group_id, each in enumerate(lengths)]

    def samples(micro_batches):
        return sorted((row.group_id, len(sample.completion_ids)) for batch in micro_batches for row in batch.rows for sample in row.samples)

    alone = [batch for group in groups for batch in plan_micro_batches([group], version=0, token_budget=24)]
    assert samples(alone) == samples(plan_micro_batches(groups, version=0, token_budget=24))
    assert {batch.minibatch for batch in alone} == {0}


@pytest.mark.parametrize("num_groups", [1, 2, 5])
def test_groups_without_samples_leave_the_shares_of_the_others_as_they_are(num_groups):
    groups = [trained_group(group_id, [3], advantages=[None] if group_id == 0 else [1.0]) for group_id in range(num_groups)]
    plan = plan_micro_batches(groups, version=0, token_budget=50, num_minibatches=num_groups)
    assert ids_by_minibatch(plan, num_groups) == [[]] + [[group_id] for group_id in range(1, num_groups)]


def test_no_groups_give_no_micro_batches():
    assert plan_micro_batches([], version=0, token_budget=10) == []


def test_batching_needs_no_torch():
    script = "import sys, headrace.batching.micro_batches; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_ranks_get_equally_many_micro_batches_of_nearly_equal_tokens():
    groups = [trained_group(group_id, [length]) for group_id, length in enumerate([17, 9, 8, 5, 3])]
    plan = plan_micro_batches(groups, version=0, token_budget=24, num_ranks=2)
    by_rank = [[batch for batch in plan if batch.rank == rank] for rank in range(2)]
    assert len(by_rank[0]) == len(by_rank[1])
    assert sorted(row.group_id for batch in plan for row in batch.rows) == [0, 1, 2, 3, 4]
    tokens = [sum(row.num_tokens for batch in mine for row in batch.rows) for mine in by_rank]
    assert abs(tokens[0] - tokens[1]) <= 4


def test_a_rank_without_rows_has_empty_micro_batches():
    plan = plan_micro_batches([trained_group(0, [3])], version=0, token_budget=20, num_ranks=2)
    assert sorted((batch.rank, len(batch.rows)) for batch in plan) == [(0, 1), (1, 0)]


def test_what_only_shadows_train_on_follows_in_micro_batches_of_its_own():
    masked = trained_group(3, [4, 2, 5], advantages=[1.0, None, None])
    shadowed = replace(masked, shadow_advantages={"a": [None, np.ones(2, np.float32), None], "b": [None, None, None]})
    whole = trained_group(4, [3])
    plan = plan_micro_batches([shadowed, whole], version=7, token_budget=20)
    assert shape(plan[:-1]) == shape(plan_micro_batches([masked, whole], version=7, token_budget=20))
    assert plan[-1].rows == ()
    [row] = plan[-1].shadow_rows
    [sample] = row.samples
    assert (row.group_id, len(sample.completion_ids), sample.advantages.tolist()) == (3, 2, [0.0, 0.0])
    assert sample.shadow_advantages["b"] is None
    assert plan[-1].oldest_version == 0
