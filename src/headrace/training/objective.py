"""The whole loss of one forward pass: policy loss + beta · KL − entropy_coefficient · entropy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.algorithms.diagnostics import TokenTotals, measure
from headrace.algorithms.kl import k3
from headrace.algorithms.losses import LossTokens, kl_loss
from headrace.algorithms.normalisers import Normaliser
from headrace.config.algorithm import AlgorithmSection
from headrace.training.collation import CollatedRows
from headrace.training.composition import KL_ESTIMATORS, Composition
from headrace.training.logprobs import TokenScores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """The loss of one forward pass: an un-normalised sum, and what its tokens went through."""

    loss_sum: Tensor
    """Scalar with gradient; divide the sum of all passes of an update by the normaliser's denominator, once."""
    token_totals: TokenTotals
    entropy_sum: Tensor
    kl_sum: Tensor | None
    """Of k3 to the reference, over tokens; None without one."""
    log_importance: Tensor
    """log π_θ − log π_behave [tokens], without gradient."""


def loss_tokens(rows: CollatedRows, scores: TokenScores, advantages: Tensor, mask: Tensor, normaliser: Normaliser) -> LossTokens:
    """A pass's tokens as the losses take them; only those of the mask carry loss."""
    return LossTokens(
        logprobs=scores.logprobs,
        behaviour_logprobs=rows.behaviour_logprobs,
        advantages=advantages,
        weights=normaliser.token_weights(rows.sample_index, mask),
        mask=mask,
        sequence_index=rows.sample_index,
    )


def objective(
    rows: CollatedRows,
    scores: TokenScores,
    *,
    advantages: Tensor,
    algorithm: AlgorithmSection,
    composition: Composition,
    normaliser: Normaliser,
    version: int,
    start_logprobs: Tensor | None,
    reference_logprobs: Tensor | None,
    trusted_distance: float | None,
) -> Objective:
    """Put the loss together.

    Args:
        rows: The pass.
        scores: What the policy being trained says about its tokens.
        advantages: Of its tokens [tokens].
        algorithm: Weighs KL and entropy.
        composition: The policy loss.
        normaliser: Weighs the tokens.
        version: Trainer version that trains on them.
        start_logprobs: Of the weights that the step started from; None when these are the present ones.
        reference_logprobs: Of the frozen initial policy; None when the loss has no KL term.
        trusted_distance: Largest squared log-ratio to the sampler that is trained on; None is no bound.
    """
    # No token is masked: an advantage that is not a number must reach the loss and be reported.
    tokens = loss_tokens(rows, scores, advantages, torch.ones_like(rows.sample_index, dtype=torch.bool), normaliser)
    staleness = version - rows.versions
    policy = composition.loss(tokens, staleness=staleness, start_logprobs=start_logprobs, trusted_distance=trusted_distance)
    loss_sum = policy.loss_sum
    if reference_logprobs is not None:
        estimator = KL_ESTIMATORS[algorithm.kl_estimator]
        loss_sum = loss_sum + algorithm.beta * kl_loss(tokens, reference_logprobs=reference_logprobs, estimator=estimator)
    if algorithm.entropy_coefficient:
        loss_sum = loss_sum - algorithm.entropy_coefficient * (tokens.weights * scores.entropies).sum()
    logprobs = scores.logprobs.detach()
    return Objective(
        loss_sum=loss_sum,
        token_totals=measure(tokens, policy, staleness=staleness),
        entropy_sum=scores.entropies.detach().sum(dtype=torch.float64),
        kl_sum=None if reference_logprobs is None else k3(logprobs, reference_logprobs).sum(dtype=torch.float64),
        log_importance=logprobs - rows.behaviour_logprobs,
    )
