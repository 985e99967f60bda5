import pytest
from batching.groups import row
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.packing import pack_rows, split_row
from headrace.errors import RecipeError

rows_to_pack = st.lists(st.tuples(st.integers(1, 10), st.lists(st.integers(1, 20), min_size=1, max_size=6)), max_size=12).map(
    lambda shapes: [row(group_id, prompt, lengths) for group_id, (prompt, lengths) in enumerate(shapes)]
)


def lengths_of(packed):
    return [[part.num_tokens for part in rows] for rows in packed]


def single(sizes):
    return [row(group_id, 1, [size - 1]) for group_id, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "budget", "packed"),
    [
        ([6, 3, 4, 2], 8, [[6, 2], [4, 3]]),
        ([2, 8, 3], 16, [[8, 3, 2]]),
        ([5, 5, 5], 10, [[5, 5], [5]]),
        ([9, 3, 3, 3, 2], 9, [[9], [3, 3, 3], [2]]),
        ([], 10, []),
    ],
)
def test_longest_first_into_what_has_room(sizes, budget, packed):
    assert lengths_of(pack_rows(single(sizes), token_budget=budget)) == packed


def test_a_row_goes_where_the_fewest_samples_are():
    rows = [row(0, 1, [2, 2, 2]), row(1, 1, [5]), row(2, 1, [1])]
    assert [[part.group_id for part in rows] for rows in pack_rows(rows, token_budget=9)] == [[0], [1, 2]]
    assert [[part.group_id for part in rows] for rows in pack_rows(rows[:1] + rows[2:], token_budget=9)] == [[0, 2]]


def test_a_row_over_the_budget_is_split_with_its_prompt_repeated():
    whole = row(7, 4, [5, 2, 6, 3])
    parts = split_row(whole, token_budget=12)
    assert [[len(sample.completion_ids) for sample in part.samples] for part in parts] == [[6, 2], [5, 3]]
    assert {(part.group_id, part.prompt_ids) for part in parts} == {(7, whole.prompt_ids)}
    assert split_row(whole, token_budget=20) == [whole]


def test_a_sample_goes_to_the_part_with_the_fewest_samples_that_has_room():
    def parts(lengths):
        return [[len(sample.completion_ids) for sample in part.samples] for part in split_row(row(0, 1, lengths), token_budget=11)]

    assert parts([1, 6, 3, 5]) == [[6, 3], [5, 1]]
    assert parts([2, 3, 6, 4, 3]) == [[6, 4], [3, 3, 2]]


def test_a_sample_over_the_budget_is_an_error_that_names_the_numbers():
    with pytest.raises(RecipeError, match=r"group 7 .* 10 tokens \(prompt 4 \+ completion 6\).*training\.token_budget = 9.* at least 10"):
        pack_rows([row(7, 4, [2, 6])], token_budget=9)
    assert lengths_of(pack_rows([row(7, 4, [2, 6])], token_budget=10)) == [[10], [6]]


@given(rows_to_pack, st.integers(30, 80))
def test_every_sample_is_packed_once_within_the_budget(rows, budget):
    packed = pack_rows(rows, token_budget=budget)
    assert all(0 < sum(part.num_tokens for part in batch) <= budget for batch in packed)

    def names(parts):
        return sorted(
            (part.group_id, float(sample.advantages[0]), len(sample.completion_ids), part.prompt_ids)
            for part in parts
            for sample in part.samples
        )

    assert names(part for batch in packed for part in batch) == names(rows)


@given(rows_to_pack, st.integers(30, 80), st.randoms(use_true_random=False))
def test_packing_does_not_depend_on_the_order_of_the_rows(rows, budget, random):
    def shape(packed):
        return [[(part.group_id, [float(sample.advantages[0]) for sample in part.samples]) for part in batch] for batch in packed]

    shuffled = random.sample(rows, len(rows))
    assert shape(pack_rows(shuffled, token_budget=budget)) == shape(pack_rows(rows, token_budget=budget))


@given(rows_to_pack, st.integers(30, 80))
def test_micro_batches_are_more_than_half_full_on_average(rows, budget):
    """Longest first never opens a micro-batch for a row that fits into another one: two of them always exceed the budget together."""
    sizes = [sum(part.num_tokens for part in batch) for batch in pack_rows(rows, token_budget=budget)]
    assert all(one + other > budget for index, one in enumerate(sizes) for other in sizes[index + 1 :])
