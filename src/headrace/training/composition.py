"""Which functions of `algorithms/` a recipe's `[algorithm]` section names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.corrections import (
    Correction,
    geometric_masked,
    off_policy_sequences_kept,
    sequence_masked,
    sequence_truncated,
    token_masked,
    token_truncated,
    uncorrected,
)
from headrace.algorithms.kl import k2, k3, unbiased_kl
from headrace.algorithms.losses import KlEstimator, Level, LossTokens, PolicyLoss, policy_loss
from headrace.algorithms.normalisers import ConstantLength, Normaliser, SequenceMean, TokenMean
from headrace.algorithms.proximal import loglinear_proximal_logprobs
from headrace.algorithms.ratios import log_ratios, sequence_ratios, token_ratios
from headrace.algorithms.surrogates import Surrogate, SurrogateLosses, cispo, clipped, dual_clipped, importance, reinforce, sapo
from headrace.config import algorithm as parts
from headrace.config.algorithm import AlgorithmSection
from headrace.errors import RecipeError

LEVELS: dict[str, Level] = {"token": token_ratios, "sequence": sequence_ratios}
MASKS: dict[str, Callable[..., Any]] = {"token": token_masked, "sequence": sequence_masked, "geometric": geometric_masked}
TRUNCATIONS: dict[str, Callable[..., Any]] = {"token": token_truncated, "sequence": sequence_truncated}
KL_ESTIMATORS: dict[str, KlEstimator] = {
    "k2": lambda logprobs, reference, _: k2(logprobs, reference),
    "k3": lambda logprobs, reference, _: k3(logprobs, reference),
    "unbiased": unbiased_kl,
}

TokenLossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A user's surrogate: (ratio, log-probabilities, advantages) to losses, each [tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A policy loss with its settings bound; see `compose`."""

    surrogate: Surrogate
    correction: Correction
    level: Level
    proximal: str
    """`behaviour`, `recompute` or `loglinear`."""
    off_policy_mask_threshold: float | None
    learns_without_advantage: bool
    """Whether tokens of a sample without any advantage may have a gradient, too; our surrogates are products with it."""

    def loss(
        self, tokens: LossTokens, *, staleness: Tensor, start_logprobs: Tensor | None, trusted_distance: float | None = None
    ) -> PolicyLoss:
        """The loss of a micro-batch.

        Args:
            tokens: Its tokens.
            staleness: Trainer version minus the token's version [tokens].
            start_logprobs: Of the weights that the step started from; None when these are the present ones.
            trusted_distance: Largest squared log-ratio to the sampler that is trained on; None is no bound.
        """
        return policy_loss(
            tokens,
            proximal_logprobs=self._proximal_logprobs(tokens, staleness, start_logprobs),
            surrogate=self.surrogate,
            correction=self.correction,
            level=self.level,
            trusted=self._trusted(tokens, start_logprobs, trusted_distance),
        )

    def _proximal_logprobs(self, tokens: LossTokens, staleness: Tensor, start_logprobs: Tensor | None) -> Tensor:
        match self.proximal:
            case "recompute":
                return tokens.logprobs.detach() if start_logprobs is None else start_logprobs
            case "loglinear":
                return loglinear_proximal_logprobs(tokens.logprobs, tokens.behaviour_logprobs, staleness)
            case _:
                return tokens.behaviour_logprobs

    def _trusted(self, tokens: LossTokens, start_logprobs: Tensor | None, trusted_distance: float | None) -> Tensor | None:
        trusted = None
        if self.off_policy_mask_threshold is not None:
            trusted = off_policy_sequences_kept(
                tokens.logprobs,
                tokens.behaviour_logprobs,
                tokens.advantages,
                tokens.sequences,
                threshold=self.off_policy_mask_threshold,
            )
        if trusted_distance is not None:
            present = tokens.logprobs.detach() if start_logprobs is None else start_logprobs
            # Written so that NaN is trusted: it must reach the loss and be reported.
            near = ~(log_ratios(present, tokens.behaviour_logprobs).square() > trusted_distance)
            trusted = near if trusted is None else trusted & near
        return trusted


def compose(algorithm: AlgorithmSection, *, token_losses: TokenLossFunction | None = None) -> Composition:
    """Choose the functions.

    Args:
        algorithm: Names the parts.
        token_losses: The user's function, when `surrogate.type` is 'python'.
    """
    return Composition(
        surrogate=_surrogate(algorithm.surrogate, token_losses),
        correction=_correction(algorithm.correction),
        level=LEVELS[algorithm.importance_sampling_level],
        proximal=algorithm.proximal,
        off_policy_mask_threshold=algorithm.off_policy_mask_threshold,
        learns_without_advantage=isinstance(algorithm.surrogate, parts.PythonSurrogate),
    )


def normaliser_of(algorithm: AlgorithmSection, max_completion_length: int) -> Normaliser:
    """The normaliser that `algorithm.denominator` names."""
    match algorithm.denominator:
        case "tokens":
            return TokenMean()
        case "sequences":
            return SequenceMean()
        case "constant":
            return ConstantLength(max_completion_length=max_completion_length)


def _surrogate(section: parts.Surrogate, token_losses: TokenLossFunction | None) -> Surrogate:
    match section:
        case parts.ClipSurrogate():
            bounds = {"epsilon": section.epsilon, "epsilon_high": section.clip_high}
            return partial(clipped, **bounds) if section.delta is None else partial(dual_clipped, **bounds, delta=section.delta)
        case parts.CispoSurrogate():
            return partial(cispo, ratio_cap=section.ratio_cap)
        case parts.SapoSurrogate():
            return partial(sapo, tau_positive=section.tau_positive, tau_negative=section.tau_negative)
        case parts.M2poSurrogate() | parts.ImportanceSurrogate():
            return importance
        case parts.ReinforceSurrogate():
            return reinforce
        case parts.PythonSurrogate():
            assert token_losses is not None, "a surrogate of type 'python' needs its function"
            return partial(_of_user, token_losses)


def _of_user(token_losses: TokenLossFunction, ratio: Tensor, logprobs: Tensor, advantages: Tensor) -> SurrogateLosses:
    try:
        losses = token_losses(ratio, logprobs, advantages)
    except Exception as error:  # it is the user's
        raise RecipeError(f"algorithm.surrogate.function failed for {len(ratio)} tokens: {type(error).__name__}: {error}") from error
    if not isinstance(losses, Tensor) or losses.shape != ratio.shape:
        raise RecipeError(
            f"algorithm.surrogate.function returned {_shape(losses)} for {len(ratio)} tokens; it must return the loss of each token, a "
            "tensor of the shape of its arguments, not yet summed"
        )
    nowhere = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateLosses(losses=losses, clipped_low=nowhere, clipped_high=nowhere)


def _shape(losses: object) -> str:
    return f"a tensor of shape {list(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"


def _correction(section: parts.Correction) -> Correction:
    match section:
        case parts.NoCorrection():
            return uncorrected
        case parts.TruncatedCorrection():
            return partial(TRUNCATIONS[section.level], low=section.low, high=section.high)
        case parts.MaskedCorrection():
            return partial(MASKS[section.level], low=section.low, high=section.high)
        case parts.IcePopCorrection():
            return partial(token_masked, low=section.low, high=section.high)
