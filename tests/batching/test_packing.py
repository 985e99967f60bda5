import pytest
from batching.groups import row
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.packing import pack_rows, padded_tokens, split_row
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
        ([6, 3, 3], 6, [[6], [3, 3]]),
        ([2, 8, 3], 16, [[8, 3], [2]]),
        ([5, 5, 5], 10, [[5, 5], [5]]),
        ([4, 4, 4, 2], 8, [[4, 4], [4, 2]]),
        ([9, 3, 3, 3, 2], 9, [[9], [3, 3, 3], [2]]),
        ([], 10, []),
    ],
)
def test_longest_first_into_what_fits_with_padding(sizes, budget, packed):
    assert lengths_of(pack_rows(single(sizes), token_budget=budget)) == packed


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
    assert all(0 < padded_tokens(batch) <= budget for batch in packed)

    def names(parts):
        return sorted(
            (part.group_id, sample.advantage, len(sample.completion_ids), part.prompt_ids) for part in parts for sample in part.samples
        )

    assert names(part for batch in packed for part in batch) == names(rows)


@given(rows_to_pack, st.integers(30, 80), st.randoms(use_true_random=False))
def test_packing_does_not_depend_on_the_order_of_the_rows(rows, budget, random):
    def shape(packed):
        return [[(part.group_id, [sample.advantage for sample in part.samples]) for part in batch] for batch in packed]

    shuffled = random.sample(rows, len(rows))
    assert shape(pack_rows(shuffled, token_budget=budget)) == shape(pack_rows(rows, token_budget=budget))


def fewest_micro_batches(sizes, budget):
    """By trying every way to share the rows out."""
    if not sizes:
        return 0
    first, rest = sizes[0], sizes[1:]
    ways = []
    for chosen in range(2 ** len(rest)):
        together = [first] + [size for index, size in enumerate(rest) if chosen >> index & 1]
        if len(together) * max(together) <= budget:
            ways.append(1 + fewest_micro_batches([size for index, size in enumerate(rest) if not chosen >> index & 1], budget))
    return min(ways)


@given(st.lists(st.integers(2, 12), max_size=6), st.integers(12, 30))
def test_no_packing_has_fewer_micro_batches(sizes, budget):
    assert len(pack_rows(single(sizes), token_budget=budget)) == fewest_micro_batches(sizes, budget)


def test_the_cost_is_the_padded_rectangle():
    assert [padded_tokens(batch) for batch in ([], single([4]), single([6, 3]))] == [0, 4, 12]
