"""What a summed loss is divided by.

A normaliser is a weight for each token and one denominator for the whole batch of an optimizer update:

    loss = Σ over all micro-batches and ranks of Σ_t weight_t · loss_t   /   denominator

The sum may be split at any sequence boundary, and the division is made once, before the gradient is clipped; so neither the
split nor the order of arrival changes the update. Counts are those of the whole update, given by the caller.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Counts over all micro-batches and ranks of one optimizer update."""

    loss_tokens: int
    """Tokens that the loss mask selects, those included that a behaviour weight's cap leaves out."""
    sequences: int
    """Sequences with at least one of these tokens."""


class Normaliser(Protocol):
    """A weight for each token, and what the weighted sum is divided by."""

    def token_weights(self, sequence_index: Tensor, mask: Tensor) -> Tensor:
        """Weight of each token's loss, float32 [tokens].

        Args:
            sequence_index: Number of the token's sequence within the micro-batch, from 0; every sequence is whole [tokens].
            mask: Whether the token carries loss [tokens].
        """
        ...

    def denominator(self, counts: BatchCounts) -> float:
        """What the weighted sum of the whole update is divided by; never 0, so that an empty batch gives a loss of 0."""
        ...


@dataclass(frozen=True, slots=True)
class TokenMean:
    """Σ_t loss_t / number of tokens: every token counts the same. DAPO (arXiv 2503.14476), Eq. 8; TRL's `dapo`."""

    def token_weights(self, sequence_index: Tensor, mask: Tensor) -> Tensor:
        """1 [tokens]."""
        return torch.ones_like(mask, dtype=torch.float32)

    def denominator(self, counts: BatchCounts) -> float:
        """The batch's loss tokens."""
        return float(max(counts.loss_tokens, 1))


@dataclass(frozen=True, slots=True)
class SequenceMean:
    """Mean over sequences of each one's token mean: every sequence counts the same. GRPO (arXiv 2402.03300), Eq. 3; TRL's `grpo`."""

    def token_weights(self, sequence_index: Tensor, mask: Tensor) -> Tensor:
        """1 / loss tokens of the token's sequence [tokens]."""
        lengths = torch.bincount(sequence_index[mask], minlength=int(sequence_index.max()) + 1 if len(sequence_index) else 0)
        return 1.0 / lengths.clamp(min=1)[sequence_index].to(torch.float32)

    def denominator(self, counts: BatchCounts) -> float:
        """The batch's sequences."""
        return float(max(counts.sequences, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantLength:
    """Σ_t loss_t / (sequences · max_completion_length): no dependence on lengths. Dr. GRPO (arXiv 2503.20783); TRL's `dr_grpo`."""

    max_completion_length: int

    def token_weights(self, sequence_index: Tensor, mask: Tensor) -> Tensor:
        """1 [tokens]."""
        return torch.ones_like(mask, dtype=torch.float32)

    def denominator(self, counts: BatchCounts) -> float:
        """Completions times the longest that one may be."""
        return float(max(counts.sequences, 1) * self.max_completion_length)
