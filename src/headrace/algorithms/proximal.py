"""The proximal policy of decoupled PPO.

Notation: π_θ is the policy being trained, π_prox the one that its ratio is taken to, π_behave the one that sampled a token
(its log-probability was recorded then). Three choices of π_prox are in use:

- *behaviour*: π_prox = π_behave; ordinary PPO, nothing is to be corrected.
- *recompute*: a forward pass at the start of the step (AReaL, arXiv 2505.24298, section 4.2); the caller has its log-probabilities.
- *loglinear*: interpolated, `loglinear_proximal_logprobs` (A-3PO, arXiv 2512.06547).

For the last two, `corrections.py` has the weights π_prox / π_behave.
"""

from torch import Tensor


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
