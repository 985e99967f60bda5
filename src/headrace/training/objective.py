"""Which composition of `algorithms/` a recipe's `[algorithm]` section names."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headrace.algorithms.diagnostics import TokenTotals, measure
from headrace.algorithms.kl import k3
from headrace.algorithms.losses import LossTokens, PolicyLoss, decoupled_ppo_loss, kl_loss, ppo_loss
from headrace.algorithms.normalisers import ConstantLength, Normaliser, SequenceMean, TokenMean
from headrace.algorithms.proximal import clamped_behaviour_weights, loglinear_proximal_logprobs, masked_behaviour_weights
from headrace.config.training import AlgorithmSection, BehaviourProximal, LoglinearProximal, RecomputeProximal
from headrace.training.collation import CollatedRows
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


def normaliser_of(algorithm: AlgorithmSection, max_completion_length: int) -> Normaliser:
    """The normaliser that `algorithm.denominator` names."""
    match algorithm.denominator:
        case "tokens":
            return TokenMean()
        case "sequences":
            return SequenceMean()
        case "constant":
            return ConstantLength(max_completion_length=max_completion_length)


def objective(
    rows: CollatedRows,
    scores: TokenScores,
    *,
    algorithm: AlgorithmSection,
    normaliser: Normaliser,
    version: int,
    proximal_logprobs: Tensor | None,
    reference_logprobs: Tensor | None,
) -> Objective:
    """Put the loss together: surrogate + beta · KL − entropy_coefficient · entropy.

    Args:
        rows: The pass.
        scores: What the policy being trained says about its tokens.
        algorithm: Names the parts.
        normaliser: Weighs the tokens.
        version: Trainer version that trains on them.
        proximal_logprobs: Of the weights that the step started from; None when these are the present ones.
        reference_logprobs: Of the frozen initial policy; None when beta is 0.
    """
    mask = torch.ones_like(rows.token_ids, dtype=torch.bool)
    tokens = LossTokens(
        logprobs=scores.logprobs,
        behaviour_logprobs=rows.behaviour_logprobs,
        advantages=rows.advantages,
        weights=normaliser.token_weights(rows.sample_index, mask),
        mask=mask,
    )
    staleness = version - rows.versions
    policy = _policy_loss(tokens, staleness, algorithm, proximal_logprobs)
    loss_sum = policy.loss_sum
    if reference_logprobs is not None:
        loss_sum = loss_sum + algorithm.beta * kl_loss(tokens, reference_logprobs=reference_logprobs)
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


def _policy_loss(tokens: LossTokens, staleness: Tensor, algorithm: AlgorithmSection, proximal_logprobs: Tensor | None) -> PolicyLoss:
    epsilons = {"epsilon": algorithm.epsilon, "epsilon_high": algorithm.clip_high}
    current = tokens.logprobs.detach()
    match algorithm.proximal:
        case BehaviourProximal():
            return ppo_loss(tokens, **epsilons)
        case RecomputeProximal():
            anchor = current if proximal_logprobs is None else proximal_logprobs
        case LoglinearProximal():
            anchor = loglinear_proximal_logprobs(current, tokens.behaviour_logprobs, staleness)
    weigh = masked_behaviour_weights if algorithm.proximal.beyond_cap == "mask" else clamped_behaviour_weights
    capped_weights = partial(weigh, cap=algorithm.proximal.behaviour_weight_cap)
    return decoupled_ppo_loss(tokens, proximal_logprobs=anchor, capped_weights=capped_weights, **epsilons)
