"""The loss of a micro-batch, put together from its parts.

    Σ_t  token weight  ·  behaviour weight  ·  surrogate(ratio_t, log π_θ, A_t)        over the tokens that are kept
         normalisers.py   corrections.py       surrogates.py   ratios.py, proximal.py   advantages.py, token_advantages.py

An un-normalised weighted sum: add the sums of all micro-batches up and divide once by the normaliser's denominator. Whatever stands at
masked positions (NaN and infinity included) changes neither a value nor a gradient: the mask selects what goes in, which stops them in
the gradient, and the sum's terms, which stops them in the value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from headrace.algorithms.corrections import Correction, uncorrected
from headrace.algorithms.ratios import Sequences, log_ratios, masked, token_ratios
from headrace.algorithms.surrogates import Surrogate

Level = Callable[[Tensor, Tensor, Sequences], Tensor]
"""`token_ratios` or `sequence_ratios`."""


@dataclass(frozen=True, kw_only=True, eq=False)
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
    sequence_index: Tensor
    """Number of the token's sequence, from 0; every sequence is whole."""

    @cached_property
    def sequences(self) -> Sequences:
        """Sums and means over sequences."""
        return Sequences(self.sequence_index, self.mask)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyLoss:
    """A micro-batch's loss, and what its tokens went through: no gradient, each [tokens], without meaning where masked."""

    loss_sum: Tensor
    """Σ weights · loss over the mask, a scalar with gradient."""
    ratio: Tensor
    """π_θ / π_prox."""
    behaviour_weights: Tensor
    """π_prox / π_behave as applied: after the correction's bounds."""
    clipped_low: Tensor
    clipped_high: Tensor
    kept: Tensor
    """False where masked, or left out by the correction or because it is not trusted."""


def policy_loss(
    tokens: LossTokens,
    *,
    proximal_logprobs: Tensor,
    surrogate: Surrogate,
    correction: Correction = uncorrected,
    level: Level = token_ratios,
    trusted: Tensor | None = None,
) -> PolicyLoss:
    """Every policy loss here is this one, with other parts.

    Args:
        tokens: The micro-batch.
        proximal_logprobs: log π_prox [tokens]; its gradient is ignored. The sampler's own for ordinary PPO.
        surrogate: The loss of a token.
        correction: Weighs tokens by π_prox / π_behave.
        level: Ratios of tokens or of sequences.
        trusted: False for tokens to leave out for another reason [tokens].
    """
    mask, sequences = tokens.mask, tokens.sequences
    logprobs, advantages = masked(tokens.logprobs, mask), masked(tokens.advantages, mask)
    proximal = masked(proximal_logprobs.detach(), mask)
    ratio = level(logprobs, proximal, sequences)
    losses, clipped_low, clipped_high = surrogate(ratio, logprobs, advantages)
    behaviour_weights, within_bounds = correction(log_ratios(proximal, masked(tokens.behaviour_logprobs, mask)), sequences)
    kept = mask & within_bounds if trusted is None else mask & within_bounds & trusted
    return PolicyLoss(
        # A masked token's weight is in the gradient of its sequence's ratio too.
        loss_sum=masked(masked(tokens.weights, mask) * behaviour_weights * losses, kept).sum(),
        ratio=ratio.detach(),
        behaviour_weights=behaviour_weights,
        clipped_low=clipped_low & kept,
        clipped_high=clipped_high & kept,
        kept=kept,
    )


KlEstimator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From (log π_θ, log π_reference, log π_behave) to a penalty of each token [tokens]."""


def kl_loss(tokens: LossTokens, *, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Σ weight · estimate of KL(π_θ ‖ π_reference), before its factor beta, a scalar with gradient.

    It pulls towards the reference whatever the advantages are, also in groups without signal, as canonical GRPO does.
    """
    penalties = estimator(
        masked(tokens.logprobs, tokens.mask), masked(reference_logprobs, tokens.mask), masked(tokens.behaviour_logprobs, tokens.mask)
    )
    return masked(tokens.weights * penalties, tokens.mask).sum()
