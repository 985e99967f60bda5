"""From micro-batches to the tensors of one forward pass.

A row is [prompt, completion 1, …, completion K]; the position ids of every completion go on from the prompt's end. Models that can
share prompts get all rows of a pass one after the other, as one sequence; others get one sample a row, padded on the right.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.types import Floats, Sample, SharedPromptRow

_ROUNDING = 64
"""Tokens of a sequence and scored positions are filled up to a multiple of it, so that their numbers come again: oneDNN compiles its
products for every new number of rows, and keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Where a row of shared prompt and completions stands among a pass's tokens."""

    start: int
    prompt_length: int
    completion_lengths: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Of prompt and completions."""
        return self.prompt_length + sum(self.completion_lengths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollatedRows:
    """Tensors of one forward pass. `tokens` are the loss tokens of all rows, sample after sample."""

    input_ids: Tensor
    """[1, all tokens], or [samples, width] with 0 in the padding."""
    position_ids: Tensor
    """As `input_ids`."""
    layouts: tuple[RowLayout, ...] | None
    """The rows of a single sequence; None for one sample a row."""
    scored_positions: Tensor
    """[positions] places in the flattened `input_ids` whose hidden state predicts a loss token: each once, rising, then the last again."""
    position_of_token: Tensor
    """[tokens] index into `scored_positions`."""
    token_ids: Tensor
    """[tokens]."""
    behaviour_logprobs: Tensor
    """[tokens] float32, recorded when the token was sampled."""
    versions: Tensor
    """[tokens] version that sampled the token."""
    advantages: Tensor
    """[tokens] float32."""
    shadow_advantages: Mapping[str, Tensor]
    """[tokens] float32, by the names of algorithms that are only compared with; NaN where one would leave the sample out."""
    sample_index: Tensor
    """[tokens] number of its sample among these rows, from 0."""
    samples: tuple[Sample, ...]
    """In the order of their tokens."""
    num_samples: int
    num_useful_tokens: int
    """Tokens computed, padding not counted."""

    @property
    def num_loss_tokens(self) -> int:
        """Completion tokens."""
        return len(self.token_ids)

    @property
    def num_padded_tokens(self) -> int:
        """Tokens computed, padding counted."""
        return self.input_ids.numel()


def collate_in_sequence(rows: Sequence[SharedPromptRow], device: torch.device) -> CollatedRows:
    """All rows one after the other, and behind them the padding: a row of its own, that nothing sees."""
    *starts, end = np.cumsum([0, *(row.num_tokens for row in rows)])
    padding = -end % _ROUNDING
    parts = [_lay_out(row) for row in rows]
    layouts = tuple(
        RowLayout(
            start=int(start),
            prompt_length=len(row.prompt_ids),
            completion_lengths=tuple(len(sample.completion_ids) for sample in row.samples),
        )
        for start, row in zip(starts, rows, strict=True)
    )
    return _collated(
        rows,
        device,
        input_ids=np.concatenate([*(part.input_ids for part in parts), np.zeros(padding, np.int64)])[None],
        position_ids=np.concatenate([*(part.position_ids for part in parts), np.arange(padding)])[None],
        predicting=np.concatenate([start + part.predicting for start, part in zip(starts, parts, strict=True)]),
        layouts=layouts if padding == 0 else (*layouts, RowLayout(start=int(end), prompt_length=padding, completion_lengths=())),
    )


def collate_padded(rows: Sequence[SharedPromptRow], device: torch.device) -> CollatedRows:
    """Rows of one sample each above one another, padded on the right to the longest."""
    assert all(len(row.samples) == 1 for row in rows), "only a sequence can share prompts"
    width = max(row.num_tokens for row in rows)
    parts = [_lay_out(row) for row in rows]
    return _collated(
        rows,
        device,
        input_ids=np.stack([np.pad(part.input_ids, (0, width - len(part.input_ids))) for part in parts]),
        position_ids=np.tile(np.arange(width), (len(rows), 1)),
        predicting=np.concatenate([index * width + part.predicting for index, part in enumerate(parts)]),
        layouts=None,
    )


def one_sample_a_row(rows: Sequence[SharedPromptRow]) -> list[SharedPromptRow]:
    """The same samples with the prompt repeated: the layout that every causal model can compute."""
    return [replace(row, samples=(sample,)) for row in rows for sample in row.samples]


def tokens_with_signal(advantages: Tensor, rows: CollatedRows) -> Tensor:
    """Whether a token's sample has an advantage at any of its tokens [tokens]."""
    sizes = advantages.nan_to_num().abs()
    return sizes.new_zeros(rows.num_samples).index_add(0, rows.sample_index, sizes)[rows.sample_index] > 0


def fit_to_budget(rows: Sequence[SharedPromptRow], token_budget: int) -> list[list[SharedPromptRow]]:
    """Cut a list of rows into passes of at most `token_budget` tokens, padding included; a longer single row is a pass of its own."""
    passes: list[list[SharedPromptRow]] = []
    width = 0
    for row in sorted(rows, key=lambda row: row.num_tokens):
        width = max(width, row.num_tokens)
        if passes and (len(passes[-1]) + 1) * width <= token_budget:
            passes[-1].append(row)
        else:
            passes.append([row])
            width = row.num_tokens
    return passes


def _collated(
    rows: Sequence[SharedPromptRow],
    device: torch.device,
    *,
    input_ids: NDArray[np.int64],
    position_ids: NDArray[np.int64],
    predicting: NDArray[np.int64],
    layouts: tuple[RowLayout, ...] | None,
) -> CollatedRows:
    samples = [sample for row in rows for sample in row.samples]
    lengths = [len(sample.completion_ids) for sample in samples]
    scored, position_of_token = np.unique(predicting, return_inverse=True)

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    def of_tokens(per_sample: Iterable[NDArray[np.generic]]) -> Tensor:
        return tensor(np.concatenate(list(per_sample)))

    return CollatedRows(
        input_ids=tensor(input_ids),
        position_ids=tensor(position_ids),
        layouts=layouts,
        scored_positions=tensor(np.pad(scored, (0, -len(scored) % _ROUNDING), mode="edge")),
        position_of_token=tensor(position_of_token),
        token_ids=of_tokens(sample.completion_ids.astype(np.int64) for sample in samples),
        behaviour_logprobs=of_tokens(sample.logprobs for sample in samples),
        versions=of_tokens(sample.versions for sample in samples),
        advantages=of_tokens(sample.advantages for sample in samples),
        shadow_advantages={
            name: of_tokens(_or_nan(sample.shadow_advantages[name], sample) for sample in samples) for name in samples[0].shadow_advantages
        },
        sample_index=tensor(np.repeat(np.arange(len(samples)), lengths)),
        samples=tuple(samples),
        num_samples=len(samples),
        num_useful_tokens=sum(row.num_tokens for row in rows),
    )


def _or_nan(advantages: Floats | None, sample: Sample) -> Floats:
    return np.full(len(sample.completion_ids), np.nan, np.float32) if advantages is None else advantages


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    predicting: NDArray[np.int64]
    """Place in the row whose hidden state predicts each completion token, sample after sample."""


def _lay_out(row: SharedPromptRow) -> _Part:
    prompt_length = len(row.prompt_ids)
    input_ids = [np.array(row.prompt_ids, np.int64)]
    position_ids = [np.arange(prompt_length)]
    predicting: list[NDArray[np.int64]] = []
    start = prompt_length
    for sample in row.samples:
        length = len(sample.completion_ids)
        input_ids.append(sample.completion_ids.astype(np.int64))
        position_ids.append(np.arange(prompt_length, prompt_length + length))
        predicting.append(np.array([prompt_length - 1, *range(start, start + length - 1)], np.int64))
        start += length
    return _Part(
        input_ids=np.concatenate(input_ids),
        position_ids=np.concatenate(position_ids),
        predicting=np.concatenate(predicting) if predicting else np.zeros(0, np.int64),
    )
