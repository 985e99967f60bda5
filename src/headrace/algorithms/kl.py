"""Estimators of KL(p ‖ q) from tokens that p sampled, one value a token.

Source: J. Schulman, "Approximating KL Divergence" (2020, http://joschu.net/blog/kl-approx.html). With x = log q - log p:
all three have small values for near policies; k1 and k3 are unbiased as values, k2 is not. As a *loss*, with the
gradient through log p alone, k1 is useless: its expected gradient is zero.
"""

from torch import Tensor

from headrace.algorithms.ratios import log_ratios


def k1(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """-x: unbiased, of high variance, may be negative [tokens]."""
    return -log_ratios(other_logprobs, logprobs)


def k2(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """x² / 2: biased, never negative; its gradient is that of KL(p ‖ q) [tokens]."""
    return 0.5 * log_ratios(other_logprobs, logprobs).square()


def k3(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """e^x - x - 1: unbiased, never negative: GRPO's penalty (arXiv 2402.03300, Eq. 4) [tokens]."""
    x = log_ratios(other_logprobs, logprobs)
    return x.expm1() - x
