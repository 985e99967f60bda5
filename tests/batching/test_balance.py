from itertools import product

from batching.groups import row
from hypothesis import given
from hypothesis import strategies as st

from headrace.batching.balance import balance_rows

sizes_to_balance = st.lists(st.integers(2, 40), max_size=7)


def single(sizes):
    return [row(group_id, 1, [size - 1]) for group_id, size in enumerate(sizes)]


def totals(parts):
    return [sum(each.num_tokens for each in part) for part in parts]


def test_by_hand():
    # 8 and 7 differ by 1, 6 and 5 by 1; joined crosswise (8 + 5, 7 + 6) by 0; then 4 goes to either.
    parts = balance_rows(single([8, 7, 6, 5, 4]), num_ranks=2)
    assert sorted(totals(parts)) == [14, 16]
    assert sorted(sorted(each.num_tokens for each in part) for part in parts) == [[4, 5, 7], [6, 8]]


def test_one_rank_has_all_and_ranks_without_rows_are_there():
    assert totals(balance_rows(single([3, 5]), num_ranks=1)) == [8]
    assert sorted(totals(balance_rows(single([3]), num_ranks=3))) == [0, 0, 3]
    assert totals(balance_rows([], num_ranks=2)) == [0, 0]


@given(sizes_to_balance, st.integers(1, 4))
def test_every_row_has_one_rank_whatever_the_order(sizes, num_ranks):
    rows = single(sizes)
    parts = balance_rows(rows, num_ranks=num_ranks)
    assert len(parts) == num_ranks
    assert sorted(each.group_id for part in parts for each in part) == list(range(len(rows)))
    assert [[each.group_id for each in part] for part in balance_rows(rows[::-1], num_ranks=num_ranks)] == [
        [each.group_id for each in part] for part in parts
    ]


@given(sizes_to_balance, st.integers(2, 3))
def test_no_rank_has_a_third_more_than_at_the_best_division(sizes, num_ranks):
    """Graham's bound 4/3 − 1/(3m) of longest-first, which differencing does not exceed; the best by trying all."""
    divisions = product(range(num_ranks), repeat=len(sizes))
    best = min(max(sum(s for s, r in zip(sizes, ranks, strict=True) if r == rank) for rank in range(num_ranks)) for ranks in divisions)
    assert max(totals(balance_rows(single(sizes), num_ranks=num_ranks))) <= best * (4 / 3 - 1 / (3 * num_ranks)) + 1e-9
