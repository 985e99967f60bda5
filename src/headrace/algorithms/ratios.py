"""Ratios of two policies' probabilities of the same tokens, kept finite; of tokens, and of whole sequences."""

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are cut to ±20 before they are exponentiated: e^20 ≈ 4.9e8 is finite in every dtype used, e^89 is not in float32."""


def log_ratios(numerator_logprobs: Tensor, denominator_logprobs: Tensor) -> Tensor:
    """Log-ratio log(p / q) per token, cut to ±`LOG_RATIO_LIMIT`; beyond the limit the gradient is 0.

    Args:
        numerator_logprobs: log p [tokens].
        denominator_logprobs: log q [tokens].
    """
    return (numerator_logprobs - denominator_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def ratios(numerator_logprobs: Tensor, denominator_logprobs: Tensor) -> Tensor:
    """Ratio p / q per token, always finite for finite inputs [tokens]."""
    return log_ratios(numerator_logprobs, denominator_logprobs).exp()


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """The values where the mask is true, 0 elsewhere [tokens].

    A selection, not a product: 0 · NaN is NaN, and a gradient of 0 · inf is too.
    """
    return torch.where(mask, values, torch.zeros_like(values))


class Sequences:
    """Which sequence each token of a micro-batch belongs to, and which tokens carry loss. Every sequence is whole.

    Args:
        index: Number of the token's sequence, from 0 [tokens].
        mask: Whether the token carries loss [tokens].
    """

    def __init__(self, index: Tensor, mask: Tensor) -> None:
        self.index = index
        self.mask = mask
        count = int(index.max()) + 1 if len(index) else 0
        self.lengths = torch.bincount(index[mask], minlength=count)
        """Loss tokens of each sequence [sequences]."""

    def sums(self, values: Tensor) -> Tensor:
        """Sum over its sequence's loss tokens, at each token [tokens]; carries gradient."""
        of_sequences = values.new_zeros(len(self.lengths)).index_add(0, self.index, masked(values, self.mask))
        return of_sequences[self.index]

    def means(self, values: Tensor) -> Tensor:
        """Mean over its sequence's loss tokens, at each token [tokens]; carries gradient."""
        return self.sums(values) / self.lengths.clamp(min=1)[self.index].to(values.dtype)


def token_ratios(logprobs: Tensor, proximal_logprobs: Tensor, sequences: Sequences) -> Tensor:
    """π_θ / π_prox of each token [tokens]."""
    return ratios(logprobs, proximal_logprobs)


def sequence_ratios(logprobs: Tensor, proximal_logprobs: Tensor, sequences: Sequences) -> Tensor:
    """(Π_t π_θ / π_prox)^(1 / length) of its sequence, at each token [tokens].

    Source: GSPO (arXiv 2507.18071), Eq. 7. With `SequenceMean` each sequence then weighs the same, as in the paper's Eq. 5; AReaL divides
    by all tokens instead, so that long sequences weigh more.
    """
    return sequences.means(log_ratios(logprobs, proximal_logprobs)).exp()
