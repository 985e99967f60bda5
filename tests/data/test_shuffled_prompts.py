from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.shuffled_prompts import ShuffledPrompts, TokenizedPrompt, permutation
from headrace.errors import DataError


def prompts(num: int, *, first_id: int = 10, column: str = "a") -> list[TokenizedPrompt]:
    return [
        TokenizedPrompt(row=2 * n, token_ids=np.array([first_id, n], dtype=np.int32), text=f"text {n}", columns={column: n})
        for n in range(num)
    ]


def source(num: int = 6, *, seed: int = 1, shuffle: bool = True, num_epochs: int | None = 2, first_id: int = 10) -> ShuffledPrompts:
    return ShuffledPrompts(prompts(num, first_id=first_id), seed=seed, shuffle=shuffle, num_epochs=num_epochs)


def names(prompts: ShuffledPrompts, limit: int = 1000) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < limit and (prompt := prompts.next_prompt()) is not None:
        found.append((prompt.epoch, prompt.row))
    return found


@given(num=st.integers(1, 20), num_epochs=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_every_prompt_comes_exactly_once_an_epoch_and_then_no_more(num, num_epochs, seed):
    given_out = source(num, seed=seed, num_epochs=num_epochs)
    drawn = names(given_out)
    assert [epoch for epoch, _ in drawn] == [epoch for epoch in range(num_epochs) for _ in range(num)]
    assert set(Counter(drawn).values()) == {1}
    assert len(drawn) == num * num_epochs == len(given_out) * num_epochs
    assert given_out.next_prompt() is None


@given(num=st.integers(1, 9), num_before=st.integers(0, 30), seed=st.integers(0, 9), shuffle=st.booleans())
def test_a_source_goes_on_from_a_saved_position(num, num_before, seed, shuffle):
    uninterrupted = source(num, seed=seed, shuffle=shuffle, num_epochs=3)
    before = names(uninterrupted, num_before)
    resumed = source(num, seed=seed, shuffle=shuffle, num_epochs=3)
    resumed.seek(uninterrupted.position())
    assert resumed.position() == uninterrupted.position()
    assert before + names(resumed) == names(source(num, seed=seed, shuffle=shuffle, num_epochs=3))


def test_the_order_differs_by_epoch_and_by_seed_and_is_the_same_each_time():
    orders = [tuple(row for _, row in names(source(30, seed=seed, num_epochs=1))) for seed in (1, 2)]
    first, second = names(source(30, seed=1))[:30], names(source(30, seed=1))[30:]
    assert len({*orders, tuple(row for _, row in second)}) == 3
    assert tuple(row for _, row in first) == orders[0]


def test_the_permutation_is_fixed_for_good():
    # Another numpy or machine must not change the order of a run that is resumed on it.
    assert permutation(6, np.random.SeedSequence(7, spawn_key=(1, 0))) == [3, 4, 1, 0, 2, 5]


def test_without_shuffling_the_order_is_the_data_sets():
    assert names(source(3, shuffle=False)) == [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2), (1, 4)]


def test_without_a_number_of_epochs_it_never_ends():
    assert names(source(3, num_epochs=None), limit=100)[-1][0] == 33


def test_a_finished_source_goes_on_when_it_is_given_more_epochs():
    finished = source(3, num_epochs=1)
    names(finished)
    longer = source(3, num_epochs=2)
    longer.seek(finished.position())
    assert [epoch for epoch, _ in names(longer)] == [1, 1, 1]


def test_a_prompt_is_found_by_its_name():
    prompt = source().get(epoch=4, row=6)
    assert (prompt.epoch, prompt.row, prompt.token_ids, prompt.text, prompt.columns) == (4, 6, (10, 3), "text 3", {"a": 3})
    assert all(type(token_id) is int for token_id in prompt.token_ids)
    with pytest.raises(DataError, match="row 7 is not among the 6 training prompts"):
        source().get(epoch=0, row=7)


@pytest.mark.parametrize(
    "other", [source(5), source(first_id=11), source(seed=2), source(shuffle=False)], ids=["fewer", "other ids", "other seed", "file order"]
)
def test_a_position_of_other_data_is_refused_and_both_are_named(other):
    position = source().position()
    with pytest.raises(DataError) as caught:
        other.seek(position)
    assert str(position["fingerprint"]) in str(caught.value)
    assert str(other.position()["fingerprint"]) in str(caught.value)
    assert f"({len(other)} prompts)" in str(caught.value)
