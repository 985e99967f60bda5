"""Named losses: compositions of ratio, behaviour weight, surrogate and KL.

Each takes flat per-token tensors of one micro-batch, [tokens], and returns an un-normalised weighted sum: add the
sums of all micro-batches up and divide once by the normaliser's denominator. Whatever stands at masked positions (NaN and
infinity included) changes neither a value nor a gradient: the mask selects the sum's terms, which stops them in the value, and
the log-probabilities that carry gradient, which stops them in the gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.algorithms.kl import k3
from headrace.algorithms.proximal import BehaviourWeights
from headrace.algorithms.ratios import masked, ratios
from headrace.algorithms.surrogates import clipped_surrogate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTokens:
    """The tokens of a micro-batch, each field [tokens]. Only `logprobs` carries gradient."""

    logprobs: Tensor
    """log π_θ, at the temperature that the tokens were sampled with."""
    behaviour_logprobs: Tensor
    """log π_behave, as recorded when the token was sampled."""
    advantages: Tensor
    weights: Tensor
    """The normaliser's `token_weights`."""
    mask: Tensor
    """True where the token carries loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyLoss:
    """A micro-batch's loss, and what its tokens went through: no gradient, each [tokens], without meaning where masked."""

    loss_sum: Tensor
    """Σ weights · loss over the mask, a scalar with gradient."""
    ratio: Tensor
    """π_θ / π_prox."""
    behaviour_weights: Tensor
    """π_prox / π_behave as applied: after the cap."""
    clipped_low: Tensor
    clipped_high: Tensor
    kept: Tensor
    """False where masked, or where the behaviour weight's cap left the token out."""


CappedWeights = Callable[[Tensor, Tensor], BehaviourWeights]
"""From (log π_prox, log π_behave): `masked_behaviour_weights` or `clamped_behaviour_weights` with its cap bound."""


def ppo_loss(tokens: LossTokens, *, epsilon: float, epsilon_high: float) -> PolicyLoss:
    """Clipped surrogate against the policy that sampled: Σ weight · -min(w A, clip(w) A), with w = π_θ / π_behave.

    Source: PPO (arXiv 1707.06347), with GRPO's advantages: GRPO without its KL term.
    """
    return decoupled_ppo_loss(
        tokens, proximal_logprobs=tokens.behaviour_logprobs, capped_weights=_no_weights, epsilon=epsilon, epsilon_high=epsilon_high
    )


def decoupled_ppo_loss(
    tokens: LossTokens, *, proximal_logprobs: Tensor, capped_weights: CappedWeights, epsilon: float, epsilon_high: float
) -> PolicyLoss:
    """Clipped surrogate against π_prox, weighted for the policy that sampled: Σ weight · (π_prox / π_behave) · -min(r A, clip(r) A).

    Source: AReaL (arXiv 2505.24298), Eq. 5, with r = π_θ / π_prox; the cap is of its code.

    Args:
        tokens: The micro-batch.
        proximal_logprobs: log π_prox, recomputed at the start of the step or interpolated [tokens]; its gradient is ignored.
        capped_weights: Gives the behaviour weights and which tokens they keep.
        epsilon: Distance of the lower clip bound from 1.
        epsilon_high: Distance of the upper clip bound from 1.
    """
    proximal_logprobs = proximal_logprobs.detach()
    ratio = ratios(masked(tokens.logprobs, tokens.mask), proximal_logprobs)
    surrogate = clipped_surrogate(ratio, tokens.advantages, epsilon=epsilon, epsilon_high=epsilon_high)
    behaviour_weights, within_cap = capped_weights(proximal_logprobs, tokens.behaviour_logprobs)
    kept = tokens.mask & within_cap
    return PolicyLoss(
        loss_sum=masked(tokens.weights * behaviour_weights * surrogate.losses, kept).sum(),
        ratio=ratio.detach(),
        behaviour_weights=behaviour_weights,
        clipped_low=surrogate.clipped_low & kept,
        clipped_high=surrogate.clipped_high & kept,
        kept=kept,
    )


def kl_loss(tokens: LossTokens, *, reference_logprobs: Tensor) -> Tensor:
    """Σ weight · k3(π_θ ‖ π_reference): GRPO's penalty before its factor beta, a scalar with gradient.

    It pulls towards the reference whatever the advantages are, also in groups without signal, as canonical GRPO does.
    """
    penalties = k3(masked(tokens.logprobs, tokens.mask), reference_logprobs)
    return masked(tokens.weights * penalties, tokens.mask).sum()


def _no_weights(proximal_logprobs: Tensor, behaviour_logprobs: Tensor) -> BehaviourWeights:
    ones = torch.ones_like(behaviour_logprobs)
    return BehaviourWeights(ones, ones.bool())
