"""From micro-batches of shared-prompt rows to the tensors of one forward pass.

A row is [prompt, completion 1, …, completion K], padded on the right. The position ids of every completion go on from
the prompt's end; which tokens see which is told by `segment_ids` (see `attention.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.types import SharedPromptRow

PADDING_SEGMENT = -1
PROMPT_SEGMENT = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollatedRows:
    """Tensors of one forward pass. `tokens` are the loss tokens of all rows, in the order of `position_of_token`."""

    input_ids: Tensor
    """[rows, width]; 0 in the padding."""
    position_ids: Tensor
    """[rows, width]."""
    segment_ids: Tensor
    """[rows, width]: 0 the prompt, k the k-th completion, −1 padding."""
    scored_positions: Tensor
    """[positions] places in the flattened rows whose hidden state predicts a loss token; each one once, rising."""
    position_of_token: Tensor
    """[tokens] index into `scored_positions`; never decreasing."""
    token_ids: Tensor
    """[tokens]."""
    behaviour_logprobs: Tensor
    """[tokens] float32, recorded when the token was sampled."""
    versions: Tensor
    """[tokens] version that sampled the token."""
    advantages: Tensor
    """[tokens] float32: its sample's advantage."""
    sample_index: Tensor
    """[tokens] number of its sample among these rows, from 0."""
    num_samples: int
    has_shared_prompts: bool
    """Whether any row has more than one completion."""
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


def collate(rows: Sequence[SharedPromptRow], device: torch.device) -> CollatedRows:
    """Stack rows, padded on the right to the longest."""
    width = max(row.num_tokens for row in rows)
    layouts = [_lay_out(row, width) for row in rows]
    samples = [sample for row in rows for sample in row.samples]
    lengths = [len(sample.completion_ids) for sample in samples]
    predicting = np.concatenate([index * width + layout.predicting for index, layout in enumerate(layouts)])
    order = np.argsort(predicting, kind="stable")
    scored, position_of_token = np.unique(predicting[order], return_inverse=True)

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    def of_tokens(per_token: Iterable[NDArray[np.generic]]) -> Tensor:
        return tensor(np.concatenate(list(per_token))[order])

    return CollatedRows(
        input_ids=tensor(np.stack([layout.input_ids for layout in layouts])),
        position_ids=tensor(np.stack([layout.position_ids for layout in layouts])),
        segment_ids=tensor(np.stack([layout.segment_ids for layout in layouts])),
        scored_positions=tensor(scored),
        position_of_token=tensor(position_of_token),
        token_ids=of_tokens(sample.completion_ids.astype(np.int64) for sample in samples),
        behaviour_logprobs=of_tokens(sample.logprobs for sample in samples),
        versions=of_tokens(sample.versions for sample in samples),
        advantages=tensor(np.repeat(np.array([sample.advantage for sample in samples], np.float32), lengths)[order]),
        sample_index=tensor(np.repeat(np.arange(len(samples)), lengths)[order]),
        num_samples=len(samples),
        has_shared_prompts=len(samples) > len(rows),
        num_useful_tokens=sum(row.num_tokens for row in rows),
    )


def one_sample_a_row(rows: Sequence[SharedPromptRow]) -> list[SharedPromptRow]:
    """The same samples with the prompt repeated: the layout that every causal model can compute."""
    return [replace(row, samples=(sample,)) for row in rows for sample in row.samples]


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    segment_ids: NDArray[np.int64]
    predicting: NDArray[np.int64]
    """Place in the row whose hidden state predicts each completion token, sample after sample."""


def _lay_out(row: SharedPromptRow, width: int) -> _Layout:
    prompt_length = len(row.prompt_ids)
    input_ids = np.zeros(width, np.int64)
    position_ids = np.zeros(width, np.int64)
    segment_ids = np.full(width, PADDING_SEGMENT, np.int64)
    input_ids[:prompt_length] = row.prompt_ids
    position_ids[:prompt_length] = np.arange(prompt_length)
    segment_ids[:prompt_length] = PROMPT_SEGMENT
    predicting: list[NDArray[np.int64]] = []
    start = prompt_length
    for segment, sample in enumerate(row.samples, start=1):
        length = len(sample.completion_ids)
        end = start + length
        input_ids[start:end] = sample.completion_ids
        position_ids[start:end] = np.arange(prompt_length, prompt_length + length)
        segment_ids[start:end] = segment
        predicting.append(np.concatenate([[prompt_length - 1], np.arange(start, end - 1)]))
        start = end
    return _Layout(
        input_ids=input_ids,
        position_ids=position_ids,
        segment_ids=segment_ids,
        predicting=np.concatenate(predicting) if predicting else np.zeros(0, np.int64),
    )
