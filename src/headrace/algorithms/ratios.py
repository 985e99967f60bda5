"""Ratios of two policies' probabilities of the same tokens, kept finite."""

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
