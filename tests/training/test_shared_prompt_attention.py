"""Against attention of one query at a time, over the list of what it sees."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace.training import shared_prompt_attention
from headrace.training.collation import RowLayout
from headrace.training.shared_prompt_attention import Scoring, attend_by_fused_kernels, attend_to_shared_prompts, find_sequences

GROUPS, SIBLINGS, SIZE = 2, 3, 4
ROWS = ((3, (2, 5, 1)), (7, (4,)), (1, (1, 1)))


def layouts(shapes: tuple[tuple[int, tuple[int, ...]], ...]) -> list[RowLayout]:
    rows: list[RowLayout] = []
    for prompt_length, completion_lengths in shapes:
        start = rows[-1].start + rows[-1].num_tokens if rows else 0
        rows.append(RowLayout(start=start, prompt_length=prompt_length, completion_lengths=tuple(completion_lengths)))
    return rows


def seen_by_token(rows: list[RowLayout], window: int | None) -> list[list[int]]:
    seen: list[list[int]] = []
    for row in rows:
        prompt = list(range(row.start, row.start + row.prompt_length))
        seen += [prompt[: index + 1] for index in range(row.prompt_length)]
        for length in row.completion_lengths:
            own = list(range(len(seen), len(seen) + length))
            seen += [prompt + own[: index + 1] for index in range(length)]
    return [tokens if window is None else tokens[-window:] for tokens in seen]


def naive(query: Tensor, key: Tensor, value: Tensor, seen: list[list[int]], scaling: float, softcap: float | None) -> Tensor:
    key, value = key.repeat_interleave(SIBLINGS, dim=1), value.repeat_interleave(SIBLINGS, dim=1)
    outputs = []
    for token, tokens in enumerate(seen):
        scores = torch.einsum("hd,khd->hk", query[token], key[tokens]) * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        outputs.append(torch.einsum("hk,khd->hd", scores.softmax(-1), value[tokens]))
    return torch.stack(outputs)


def check(shapes: tuple[tuple[int, tuple[int, ...]], ...], *, window: int | None = None, softcap: float | None = None) -> None:
    torch.manual_seed(0)
    rows = layouts(shapes)
    tokens = sum(row.num_tokens for row in rows)
    leaves = [torch.randn(tokens, heads, SIZE, requires_grad=True) for heads in (GROUPS * SIBLINGS, GROUPS, GROUPS)]
    upstream = torch.randn(tokens, GROUPS * SIBLINGS, SIZE)
    sequences = find_sequences(rows, torch.device("cpu"))
    found = attend_to_shared_prompts(*leaves, sequences=sequences, scaling=0.7, window=window, softcap=softcap)
    expected = naive(*leaves, seen_by_token(rows, window), 0.7, softcap)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad((found * upstream).sum(), leaves), torch.autograd.grad((expected * upstream).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_queries", [1, 2, 100])
@pytest.mark.parametrize("free_pairs", [0, 10_000])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (2, None), (None, 1.5), (4, 1.5)])
def test_every_token_attends_to_its_prompt_and_its_own_completion(
    window: int | None, softcap: float | None, free_pairs: int, max_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prompt_attention, "_MAX_QUERIES", max_queries)
    monkeypatch.setattr(shared_prompt_attention, "_FREE_PAIRS", free_pairs)
    check(ROWS, window=window, softcap=softcap)


@given(st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), max_size=4)), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_any_rows_will_do(shapes: list[tuple[int, list[int]]]) -> None:
    check(tuple((prompt, tuple(lengths)) for prompt, lengths in shapes))


def test_sequences_of_like_length_make_a_batch_and_a_long_one_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompt_attention, "_FREE_PAIRS", 0)
    sequences = find_sequences(layouts(((40, (30, 28, 900)), (41, (29,)))), torch.device("cpu"))
    assert sorted(tuple(batch.tokens.shape) for batch in sequences.batches) == [(1, 900), (2, 41), (3, 30)]


def test_scores_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompt_attention, "_MAX_PAIRS", 500)
    monkeypatch.setattr(shared_prompt_attention, "_FREE_PAIRS", 0)
    sequences = find_sequences(layouts(((10, (10,) * 6),)), torch.device("cpu"))
    assert [tuple(batch.tokens.shape) for batch in sequences.batches] == [(1, 10), (2, 10), (2, 10), (2, 10)]


@pytest.mark.parametrize("max_queries", [2, 100])
@pytest.mark.parametrize("window", [None, 3])
def test_fused_kernels_give_the_same(window: int | None, max_queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompt_attention, "_MAX_QUERIES", max_queries)
    rows = layouts(ROWS)
    tokens = sum(row.num_tokens for row in rows)
    leaves = [torch.randn(tokens, heads, SIZE, requires_grad=True) for heads in (GROUPS * SIBLINGS, GROUPS, GROUPS)]
    found = attend_by_fused_kernels(*leaves, find_sequences(rows, torch.device("cpu")), 0.7, Scoring(window, None))
    expected = naive(*leaves, seen_by_token(rows, window), 0.7, None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(found.square().sum(), leaves), torch.autograd.grad(expected.square().sum(), leaves), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_narrow_values_make_a_narrow_result_from_float32_scores() -> None:
    rows = layouts(ROWS)
    tokens = sum(row.num_tokens for row in rows)
    query, key, value = (torch.randn(tokens, heads, SIZE) for heads in (GROUPS * SIBLINGS, GROUPS, GROUPS))
    sequences = find_sequences(rows, torch.device("cpu"))
    found = attend_to_shared_prompts(query, key, value.bfloat16(), sequences=sequences, scaling=1.0, window=None, softcap=None)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), naive(query, key, value, seen_by_token(rows, None), 1.0, None), rtol=0.02, atol=0.03)
