"""The clipped surrogate of PPO."""

from typing import NamedTuple

import torch
from torch import Tensor


class ClippedSurrogate(NamedTuple):
    """Per-token results of `clipped_surrogate`, each [tokens]."""

    losses: Tensor
    clipped_low: Tensor
    """The advantage is negative and the ratio below 1 - epsilon: no gradient."""
    clipped_high: Tensor
    """The advantage is positive and the ratio above 1 + epsilon_high: no gradient."""


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, epsilon: float, epsilon_high: float) -> ClippedSurrogate:
    """-min(r · A, clip(r, 1 - epsilon, 1 + epsilon_high) · A) per token.

    Source: PPO (arXiv 1707.06347), Eq. 7; the second bound of its own is DAPO's (arXiv 2503.14476).

    Args:
        ratio: r = π_θ / π_prox [tokens].
        advantages: A [tokens].
        epsilon: Distance of the lower bound from 1.
        epsilon_high: Distance of the upper bound from 1.
    """
    lowest, highest = 1.0 - epsilon, 1.0 + epsilon_high
    return ClippedSurrogate(
        losses=-torch.minimum(ratio * advantages, ratio.clamp(lowest, highest) * advantages),
        clipped_low=(ratio < lowest) & (advantages < 0),
        clipped_high=(ratio > highest) & (advantages > 0),
    )
