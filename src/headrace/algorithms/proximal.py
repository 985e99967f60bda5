"""The proximal policy of decoupled PPO, and the weight that corrects for who sampled.

Notation: π_θ is the policy being trained, π_prox the one it is clipped against, π_behave the one that sampled a token
(its log-probability was recorded then). Three choices of π_prox are in use:

- *behaviour*: π_prox = π_behave; ordinary PPO, the weight is 1, nothing here is needed.
- *recompute*: a forward pass at the start of the step (AReaL, arXiv 2505.24298, section 4.2); the caller has its log-probabilities.
- *loglinear*: interpolated, `loglinear_proximal_logprobs` (A-3PO, arXiv 2512.06547).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.ratios import ratios


class BehaviourWeights(NamedTuple):
    """What `masked_behaviour_weights` and `clamped_behaviour_weights` return."""

    weights: Tensor
    """Factor of each token's loss, without gradient [tokens]."""
    kept: Tensor
    """False where the token is left out because its weight exceeds the cap [tokens]."""


def loglinear_proximal_logprobs(logprobs: Tensor, behaviour_logprobs: Tensor, staleness: Tensor) -> Tensor:
    """Interpolate log π_prox between sampler and current policy: log π_behave / d + (1 - 1/d) · log π_θ, without gradient [tokens].

    Source: A-3PO (arXiv 2512.06547), with d = trainer version - version of the token. For d = 1 it is π_behave.

    For d = 0 the paper and AReaL's code disagree. The paper takes π_θ: the ratio π_θ / π_prox is then 1 at every moment, so
    the freshest tokens would be trained without any trust region. AReaL takes π_behave, which is what this function
    does: the weights that sampled a token of d = 0 are those that the step starts from, hence the proximal policy itself.

    Args:
        logprobs: log π_θ [tokens].
        behaviour_logprobs: log π_behave [tokens].
        staleness: d, at least 0 [tokens].
    """
    current_share = 1.0 - 1.0 / staleness.clamp(min=1).to(logprobs.dtype)
    return behaviour_logprobs + current_share * (logprobs.detach() - behaviour_logprobs)


def masked_behaviour_weights(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, *, cap: float) -> BehaviourWeights:
    """π_prox / π_behave per token; a token whose weight is above the cap is left out (weight 0, not kept).

    Source: AReaL (arXiv 2505.24298), Eq. 5, which has no cap; masking above 5 is what its code's examples do.
    """
    weights = ratios(proximal_logprobs, behaviour_logprobs).detach()
    # Written so that NaN is kept: it must reach the loss and be reported, not vanish as a token beyond the cap.
    kept = ~(weights > cap)
    return BehaviourWeights(torch.where(kept, weights, torch.zeros_like(weights)), kept)


def clamped_behaviour_weights(proximal_logprobs: Tensor, behaviour_logprobs: Tensor, *, cap: float) -> BehaviourWeights:
    """π_prox / π_behave per token, at most the cap; every token is kept.

    Source: truncated importance sampling (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl).
    """
    weights = ratios(proximal_logprobs, behaviour_logprobs).detach().clamp(max=cap)
    return BehaviourWeights(weights, torch.ones_like(weights, dtype=torch.bool))
