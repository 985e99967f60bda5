"""Samples of random tokens with the shape of a training batch."""

from collections.abc import Sequence

import numpy as np

from headrace.batching.packing import pack_rows
from headrace.types import MicroBatch, Sample, SharedPromptRow

QUICKSTART = {"groups": 8, "rollouts": 8, "prompt_length": 45, "shortest": 8, "longest": 32}
"""The shape of the quickstart's steps."""


def grouped_rows(
    *, groups: int, rollouts: int, prompt_length: int, shortest: int, longest: int, vocabulary: int, version: int = 0
) -> list[SharedPromptRow]:
    """Groups of completions between `shortest` and `longest` tokens behind prompts of one length; the same on every call."""
    draw = np.random.default_rng(0)

    def sample() -> Sample:
        length = int(draw.integers(shortest, longest + 1))
        return Sample(
            completion_ids=draw.integers(0, vocabulary, length).astype(np.int32),
            # What a random model says of a token, so that ratios are near 1 where the model is random, and clipped elsewhere.
            logprobs=np.full(length, -np.log(vocabulary), np.float32),
            versions=np.full(length, version, np.int32),
            advantages=np.full(length, draw.normal(), np.float32),
        )

    def row(group_id: int) -> SharedPromptRow:
        prompt = tuple(draw.integers(0, vocabulary, prompt_length).tolist())
        return SharedPromptRow(group_id=group_id, prompt_ids=prompt, samples=tuple(sample() for _ in range(rollouts)))

    return [row(group_id) for group_id in range(groups)]


def micro_batches(rows: Sequence[SharedPromptRow], *, version: int, token_budget: int, num_minibatches: int = 1) -> list[MicroBatch]:
    """The rows of a step, spread over its optimizer updates and packed."""
    return [
        MicroBatch(version=version, minibatch=minibatch, rows=packed)
        for minibatch in range(num_minibatches)
        for packed in pack_rows(rows[minibatch::num_minibatches], token_budget=token_budget)
    ]


def num_loss_tokens(rows: Sequence[SharedPromptRow]) -> int:
    return sum(row.num_loss_tokens for row in rows)
