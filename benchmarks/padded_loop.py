"""The plain way to train on a batch with transformers: a row for each sequence, padded, the prompt computed again for every completion."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.types import Sample, SharedPromptRow

Sequences = Sequence[tuple[tuple[int, ...], Sample]]
"""Prompts with one completion each."""

EPSILON = 0.2


def accumulate_padded(
    model: PreTrainedModel, rows: Sequence[SharedPromptRow], *, token_budget: int, autocast_dtype: torch.dtype | None
) -> None:
    """Add the gradient sum of the clipped surrogate, in passes of at most `token_budget` tokens, padding included."""
    sequences = [(row.prompt_ids, sample) for row in rows for sample in row.samples]
    for part in passes(sequences, token_budget):
        device_type = model.device.type
        with torch.autocast(device_type, dtype=autocast_dtype, enabled=autocast_dtype is not None):
            logprobs = completion_logprobs(model, part)
        clipped_surrogate(logprobs, part).backward()


def passes(sequences: Sequences, token_budget: int) -> Iterator[Sequences]:
    """Longest completions first, so that a pass pads little."""
    ordered = sorted(sequences, key=lambda pair: -len(pair[1].completion_ids))
    while ordered:
        width = max(len(prompt) for prompt, _ in ordered) + len(ordered[0][1].completion_ids)
        count = max(1, token_budget // width)
        yield ordered[:count]
        ordered = ordered[count:]


def completion_logprobs(model: PreTrainedModel, part: Sequences) -> list[Tensor]:
    """Log-probabilities of each completion; prompts are padded on the left, completions on the right."""
    before = max(len(prompt) for prompt, _ in part)
    after = max(len(sample.completion_ids) for _, sample in part)
    tokens = torch.zeros(len(part), before + after, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for index, (prompt, sample) in enumerate(part):
        start, end = before - len(prompt), before + len(sample.completion_ids)
        tokens[index, start:end] = torch.tensor([*prompt, *sample.completion_ids])
        mask[index, start:end] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions, logits_to_keep=after + 1, use_cache=False).logits
    logprobs = logits[:, :-1].float().log_softmax(dim=-1).gather(2, tokens[:, before:, None])[:, :, 0]
    return [of_row[: len(sample.completion_ids)] for of_row, (_, sample) in zip(logprobs, part, strict=True)]


def clipped_surrogate(logprobs: Sequence[Tensor], part: Sequences) -> Tensor:
    """Sum over tokens of PPO's clipped loss against the recorded log-probabilities."""
    losses = []
    for of_sample, (_, sample) in zip(logprobs, part, strict=True):
        ratio = (of_sample - torch.from_numpy(sample.logprobs)).exp()
        clipped = ratio.clamp(1 - EPSILON, 1 + EPSILON)
        advantages = torch.from_numpy(sample.advantages)
        losses.append(-torch.minimum(ratio * advantages, clipped * advantages).sum())
    return torch.stack(losses).sum()
