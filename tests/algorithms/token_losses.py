"""Tokens of a few sequences, every part of a loss with its settings bound, and slow references of them."""

import math
from dataclasses import replace
from functools import partial

import torch

from headrace.algorithms.corrections import (
    geometric_masked,
    sequence_masked,
    sequence_truncated,
    token_masked,
    token_truncated,
    uncorrected,
)
from headrace.algorithms.losses import LossTokens
from headrace.algorithms.ratios import sequence_ratios, token_ratios
from headrace.algorithms.surrogates import cispo, clipped, dual_clipped, importance, reinforce, sapo

CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
SURROGATES = {
    "clip": partial(clipped, **CLIP),
    "dual_clip": partial(dual_clipped, **CLIP, delta=3.0),
    "cispo": partial(cispo, ratio_cap=1.5),
    "sapo": partial(sapo, tau_positive=1.0, tau_negative=1.05),
    "importance": importance,
    "reinforce": reinforce,
}
CORRECTIONS = {
    "none": uncorrected,
    "tis": partial(token_truncated, low=0.5, high=2.0),
    "sequence_tis": partial(sequence_truncated, low=0.0, high=2.0),
    "mis": partial(token_masked, low=0.0, high=2.0),
    "icepop": partial(token_masked, low=0.5, high=2.0),
    "sequence_mis": partial(sequence_masked, low=0.3, high=3.0),
    "geometric_mis": partial(geometric_masked, low=0.9, high=1.2),
}
LEVELS = {"token": token_ratios, "sequence": sequence_ratios}
LENGTHS = (1, 3, 8, 2, 5, 5)


def random_tokens(seed, lengths=LENGTHS, *, distance=0.4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    behaviour = -3 * torch.rand(count, dtype=dtype, generator=generator)
    return LossTokens(
        logprobs=behaviour + distance * torch.randn(count, dtype=dtype, generator=generator),
        behaviour_logprobs=behaviour,
        advantages=torch.randn(count, dtype=dtype, generator=generator),
        weights=torch.rand(count, dtype=dtype, generator=generator),
        mask=torch.rand(count, generator=generator) < 0.8,
        sequence_index=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
    )


def random_proximal(tokens, seed=100, distance=0.6):
    generator = torch.Generator().manual_seed(seed)
    return tokens.behaviour_logprobs + distance * torch.randn(len(tokens.mask), dtype=tokens.logprobs.dtype, generator=generator)


def tokens_of(importance, advantages, mask=None, sequence_index=None):
    """Tokens of one sequence whose π_θ / π_behave is given."""
    count = len(importance)
    return LossTokens(
        logprobs=torch.tensor(importance, dtype=torch.float64).log() - 3,
        behaviour_logprobs=torch.full((count,), -3.0, dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.ones(count, dtype=torch.float64),
        mask=torch.ones(count, dtype=torch.bool) if mask is None else torch.tensor(mask),
        sequence_index=torch.zeros(count, dtype=torch.long) if sequence_index is None else torch.tensor(sequence_index),
    )


def gradient_of(loss_of, tokens):
    logprobs = tokens.logprobs.clone().requires_grad_()
    loss = loss_of(replace(tokens, logprobs=logprobs))
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def slow_surrogate(name, ratio, logprob, advantage):
    """A token's loss in plain Python."""
    match name:
        case "clip" | "dual_clip":
            loss = -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            return min(loss, -3.0 * advantage) if name == "dual_clip" and advantage < 0 else loss
        case "cispo":
            return -min(ratio, 1.5) * advantage * logprob
        case "sapo":
            tau = 1.0 if advantage > 0 else 1.05
            return -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage
        case "importance":
            return -ratio * advantage
        case "reinforce":
            return -advantage * logprob


def slow_weight(name, weights, index):
    """A token's factor in plain Python, from the weights of its sequence's loss tokens."""
    weight, product = weights[index], math.prod(weights)
    geometric = product ** (1 / len(weights))
    match name:
        case "none":
            return 1.0
        case "tis":
            return min(max(weight, 0.5), 2.0)
        case "sequence_tis":
            return min(product, 2.0)
        case "mis":
            return weight if weight <= 2.0 else 0.0
        case "icepop":
            return weight if 0.5 <= weight <= 2.0 else 0.0
        case "sequence_mis":
            return product if 0.3 <= product <= 3.0 else 0.0
        case "geometric_mis":
            return weight if 0.9 <= geometric <= 1.2 else 0.0


def slow_loss(tokens, proximal_logprobs, *, surrogate, correction, level):
    """The whole loss, sequence by sequence and token by token, in plain Python."""
    total = 0.0
    for sequence in range(int(tokens.sequence_index.max()) + 1):
        members = [i for i in range(len(tokens.mask)) if tokens.mask[i] and tokens.sequence_index[i] == sequence]
        if not members:
            continue
        log_ratios = [float(tokens.logprobs[i] - proximal_logprobs[i]) for i in members]
        weights = [math.exp(float(proximal_logprobs[i] - tokens.behaviour_logprobs[i])) for i in members]
        for place, i in enumerate(members):
            ratio = math.exp(log_ratios[place] if level == "token" else sum(log_ratios) / len(members))
            loss = slow_surrogate(surrogate, ratio, float(tokens.logprobs[i]), float(tokens.advantages[i]))
            total += float(tokens.weights[i]) * slow_weight(correction, weights, place) * loss
    return total
