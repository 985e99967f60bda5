"""Surrogates: the loss of a token, from its ratio, its log-probability and its advantage.

All have the gradient -A · ∇ log π_θ at ratio 1; they differ in what becomes of it as the policy moves away.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class SurrogateLosses(NamedTuple):
    """What a surrogate returns, each [tokens]."""

    losses: Tensor
    clipped_low: Tensor
    """The advantage is negative and the ratio below the lower bound, so that the gradient is 0 or cut."""
    clipped_high: Tensor
    """The ratio is above an upper bound, so that the gradient is 0 or cut."""


Surrogate = Callable[[Tensor, Tensor, Tensor], SurrogateLosses]
"""From (ratio, log π_θ, A), each [tokens], the first two with gradient: one of the functions below, its settings bound."""


def clipped(ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, epsilon: float, epsilon_high: float) -> SurrogateLosses:
    """-min(r · A, clip(r, 1 - epsilon, 1 + epsilon_high) · A).

    Source: PPO (arXiv 1707.06347), Eq. 7; the second bound of its own is DAPO's (arXiv 2503.14476).
    """
    lowest, highest = 1.0 - epsilon, 1.0 + epsilon_high
    return SurrogateLosses(
        losses=-torch.minimum(ratio * advantages, ratio.clamp(lowest, highest) * advantages),
        clipped_low=(ratio < lowest) & (advantages < 0),
        clipped_high=(ratio > highest) & (advantages > 0),
    )


def dual_clipped(
    ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, epsilon: float, epsilon_high: float, delta: float
) -> SurrogateLosses:
    """As `clipped`, and for A < 0 the ratio is at most delta, so that one token that has become likely cannot outweigh a batch.

    Source: dual-clip PPO (arXiv 1912.09729; verl's `clip_ratio_c`). The two-sided clip of INTELLECT-2 (arXiv 2505.07291; TRL's
    `delta`) is the same for delta ≥ 1 + epsilon_high.
    """
    bounded = clipped(ratio, logprobs, advantages, epsilon=epsilon, epsilon_high=epsilon_high)
    negative = advantages < 0
    return SurrogateLosses(
        losses=torch.where(negative, torch.minimum(bounded.losses, -delta * advantages), bounded.losses),
        clipped_low=bounded.clipped_low,
        clipped_high=bounded.clipped_high | (negative & (ratio > delta)),
    )


def cispo(ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, ratio_cap: float) -> SurrogateLosses:
    """-sg(min(r, cap)) · A · log π_θ: the ratio weighs, but every token keeps a gradient.

    Source: CISPO (MiniMax-M1, arXiv 2506.13585), Eq. 4, with no lower bound, as recommended there. The cap is the ratio itself, as in
    TRL; verl and slime add their number to 1.
    """
    return SurrogateLosses(
        losses=-ratio.detach().clamp(max=ratio_cap) * advantages * logprobs,
        clipped_low=torch.zeros_like(ratio, dtype=torch.bool),
        clipped_high=ratio > ratio_cap,
    )


def sapo(ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, tau_positive: float, tau_negative: float) -> SurrogateLosses:
    """-(4 / τ) · sigmoid(τ · (r - 1)) · A, with a τ for each sign of A: a gate that closes smoothly on both sides of 1.

    Source: SAPO (arXiv 2511.20347). The gradient's factor is 4 · p · (1 - p) · r with p the sigmoid: 1 at r = 1.
    """
    tau = tau_negative + (tau_positive - tau_negative) * (advantages > 0).to(ratio.dtype)
    return _unclipped(-(4.0 / tau) * (tau * (ratio - 1.0)).sigmoid() * advantages)


def importance(ratio: Tensor, logprobs: Tensor, advantages: Tensor) -> SurrogateLosses:
    """-r · A: the policy gradient's own estimate, whose variance nothing bounds."""
    return _unclipped(-ratio * advantages)


def reinforce(ratio: Tensor, logprobs: Tensor, advantages: Tensor) -> SurrogateLosses:
    """-A · log π_θ, without regard to who sampled (Williams, 1992)."""
    return _unclipped(-advantages * logprobs)


def _unclipped(losses: Tensor) -> SurrogateLosses:
    nowhere = torch.zeros_like(losses, dtype=torch.bool)
    return SurrogateLosses(losses=losses, clipped_low=nowhere, clipped_high=nowhere)
