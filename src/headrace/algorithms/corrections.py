"""Corrections for who sampled: weights π_prox / π_behave, bounded in one way or another.

Each function takes the log-weights of tokens and gives a factor for each token's loss, without gradient, and which tokens are left in. The
product of many token weights grows or vanishes with length (1.1^100 = 13,780), which is what the forms for sequences differ in. Tokens
that are left out count in the denominator all the same: otherwise a batch that is mostly left out would take a full step.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.ratios import LOG_RATIO_LIMIT, Sequences


class BehaviourWeights(NamedTuple):
    """What a correction returns."""

    weights: Tensor
    """Factor of each token's loss, without gradient [tokens]; 0 where left out."""
    kept: Tensor
    """False where the token is left out because of its weight [tokens]."""


Correction = Callable[[Tensor, Sequences], BehaviourWeights]
"""From log(π_prox / π_behave) [tokens] and the sequences: one of the functions below, its bounds bound."""


def uncorrected(log_weights: Tensor, sequences: Sequences) -> BehaviourWeights:
    """Weight 1 for every token."""
    ones = torch.ones_like(log_weights)
    return BehaviourWeights(ones, ones.bool())


def token_truncated(log_weights: Tensor, sequences: Sequences, *, low: float, high: float) -> BehaviourWeights:
    """clip(weight, low, high) of each token.

    Source: truncated importance sampling (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl), which has no lower bound.
    """
    return _all_kept(_exp(log_weights).clamp(low, high))


def sequence_truncated(log_weights: Tensor, sequences: Sequences, *, low: float, high: float) -> BehaviourWeights:
    """clip(product of the sequence's weights, low, high), the same for all its tokens.

    Source: verl and TRL, sequence-level truncated importance sampling.
    """
    return _all_kept(_exp(sequences.sums(log_weights)).clamp(low, high))


def token_masked(log_weights: Tensor, sequences: Sequences, *, low: float, high: float) -> BehaviourWeights:
    """The weight of each token; outside [low, high] it is left out.

    Source: IcePop (arXiv 2510.18855) with both bounds; AReaL's code with the upper one alone (its Eq. 5 has none).
    """
    weights = _exp(log_weights)
    return _masked(weights, weights, low=low, high=high)


def sequence_masked(log_weights: Tensor, sequences: Sequences, *, low: float, high: float) -> BehaviourWeights:
    """The product of the sequence's weights, the same for all its tokens; a sequence outside [low, high] is left out.

    Source: masked importance sampling of TRL (`sequence_mask`).
    """
    weights = _exp(sequences.sums(log_weights))
    return _masked(weights, weights, low=low, high=high)


def geometric_masked(log_weights: Tensor, sequences: Sequences, *, low: float, high: float) -> BehaviourWeights:
    """The weight of each token; a sequence whose weights have a geometric mean outside [low, high] is left out.

    Source: NeMo-RL and OpenRLHF (`seq-mask-tis`), SkyRL. AReaL weighs all tokens by the geometric mean instead.
    """
    return _masked(_exp(log_weights), _exp(sequences.means(log_weights)), low=low, high=high)


def off_policy_sequences_kept(
    logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor, sequences: Sequences, *, threshold: float
) -> Tensor:
    """False where a sequence went wrong and has become unlikely: A < 0 and mean(log π_behave - log π_θ) > threshold [tokens].

    Source: off-policy sequence masking of DeepSeek-V3.2 (arXiv 2512.02556); A is the mean over the sequence's tokens.
    """
    distance = sequences.means(behaviour_logprobs - logprobs.detach())
    return ~((sequences.means(advantages) < 0) & (distance > threshold))


def largest_trusted_distance(squared_log_ratios: Tensor, *, threshold: float) -> float:
    """The squared log-ratio beyond which tokens are left out, so that those left in average at most the threshold.

    Source: M2PO (arXiv 2510.01161), Algorithm 1: the farthest token is left out until the mean is small enough. Here from the sorted
    values' running mean. The paper looks at tokens that would be clipped; AReaL's code at all loss tokens, as here, but strictly below
    the threshold.

    Args:
        squared_log_ratios: log²(π_θ / π_behave) of all loss tokens of the optimizer update [tokens].
        threshold: Largest mean.

    Returns:
        Infinity when all may stay; below 0 when not even the nearest may.
    """
    ordered = squared_log_ratios.double().sort().values
    running_mean = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    # The mean of the nearest tokens only rises as farther ones come in.
    num_kept = int((running_mean <= threshold).sum())
    if num_kept == len(ordered):
        return float("inf")
    # Tokens as far as the first one that is left out are left out with it.
    nearer = ordered[ordered < ordered[num_kept]]
    return float(nearer[-1]) if len(nearer) else -1.0


def _exp(log_weights: Tensor) -> Tensor:
    return log_weights.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _all_kept(weights: Tensor) -> BehaviourWeights:
    return BehaviourWeights(weights, torch.ones_like(weights, dtype=torch.bool))


def _masked(weights: Tensor, tested: Tensor, *, low: float, high: float) -> BehaviourWeights:
    # Written so that NaN is kept: it must reach the loss and be reported, not vanish as a token outside the bounds.
    kept = ~((tested < low) | (tested > high))
    return BehaviourWeights(torch.where(kept, weights, torch.zeros_like(weights)), kept)
