"""Estimators of KL(p ‖ q) from tokens that p sampled, one value a token.

Source: J. Schulman, "Approximating KL Divergence" (2020, http://joschu.net/blog/kl-approx.html). With x = log q - log p:
all have small values for near policies; k1 and k3 are unbiased as values, k2 is not. As a *loss*, with the gradient through log p alone,
they are something else: k1 is useless, as its expected gradient is zero; k2 has the gradient of KL(p ‖ q), k3 that of KL(q ‖ p).
"""

from torch import Tensor

from headrace.algorithms.ratios import log_ratios, ratios


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


def unbiased_kl(logprobs: Tensor, other_logprobs: Tensor, behaviour_logprobs: Tensor) -> Tensor:
    """(p / p_behave) · k3 [tokens]: unbiased in value and in gradient, which goes through the weight too, for tokens of any sampler.

    Source: DeepSeek-V3.2 (arXiv 2512.02556).
    """
    return ratios(logprobs, behaviour_logprobs) * k3(logprobs, other_logprobs)
