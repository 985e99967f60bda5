"""Drawing tokens: counter-based random numbers, and the draw itself with the log-probability it really had."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.rollout.drawing import load_draw
from headrace.types import Sampling

_BLOCK = 256
"""Tokens of a block in the two-level search: block sums in float32, their running sum and the search inside in float64."""

_ROWS_AT_ONCE_ON_CPU = 8
"""So many rows of float32 logits (49k–150k each) stay in a core's cache over the passes of one draw."""


def counter_uniforms(seeds: Sequence[int], rollouts: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) that depend on (seed, rollout, position) alone: splitmix64's mixer, applied once for each.

    Args:
        seeds: One a row; taken modulo 2^64.
        rollouts: Index of the rollout in its request, one a row.
        positions: Index of the token in the completion, one a row.

    Returns:
        One number a row, with 53 random bits (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    state = _mix(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF for seed in seeds], dtype=np.uint64))
    state = _mix(state ^ np.array(rollouts, dtype=np.uint64))
    state = _mix(state ^ np.array(positions, dtype=np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = state + np.uint64(0x9E37_79B9_7F4A_7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return state ^ (state >> np.uint64(31))


def draw_tokens(logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """Draw one token a row by inverting the cumulative distribution.

    The distribution is softmax(logits / temperature), cut to the `top_k` likeliest tokens, then to the fewest likeliest
    ones with at least `top_p` of what is left, and renormalised. Temperature 0 takes the likeliest token
    and reports its log-probability at temperature 1.

    Args:
        logits: [rows, vocabulary], any floating type.
        samplings: One a row.
        uniforms: One a row, in [0, 1).

    Returns:
        Token ids and their log-probabilities under the distribution they were drawn from, one a row. The draw's own
        error (total variation) stays below 1e-6 for vocabularies of any size, as no sum over the whole row is made in float32.
    """
    logits = _truncated(logits, samplings)
    temperatures = [sampling.temperature for sampling in samplings]
    if logits.dtype == torch.bfloat16 and logits.device.type == "cpu" and (draw := load_draw()) is not None:
        return draw(logits, temperatures, uniforms)
    return _draw_by_torch(logits, temperatures, uniforms)


def _truncated(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """The same, or where rows are to be cut a copy that has -inf outside of what they keep."""
    cut = [row for row, sampling in enumerate(samplings) if sampling.top_k > 0 or sampling.top_p < 1]
    logits = logits.clone() if cut else logits
    for row in cut:
        _truncate(logits[row], samplings[row])
    return logits


def _truncate(logits: torch.Tensor, sampling: Sampling) -> None:
    ordered, order = (logits.float() / (sampling.temperature or 1.0)).sort(descending=True, stable=True)
    if sampling.top_k > 0:
        ordered[sampling.top_k :] = -torch.inf
    if sampling.top_p < 1:
        probabilities = ordered.double().softmax(dim=-1)
        likelier = probabilities.cumsum(dim=-1) - probabilities
        ordered[likelier >= sampling.top_p] = -torch.inf
    logits[order[ordered == -torch.inf]] = -torch.inf


def _draw_by_torch(logits: torch.Tensor, temperatures: Sequence[float], uniforms: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    rows_at_once = _ROWS_AT_ONCE_ON_CPU if logits.device.type == "cpu" else len(logits)
    targets = torch.from_numpy(uniforms).to(logits.device)
    tokens: list[int] = []
    logprobs: list[float] = []
    for start in range(0, len(logits), rows_at_once):
        rows = slice(start, start + rows_at_once)
        weights = _unnormalised_probabilities(logits[rows], temperatures[rows])
        chosen, log_probability = _invert(weights, targets[rows], [temperature == 0 for temperature in temperatures[rows]])
        tokens += chosen.tolist()
        logprobs += log_probability.tolist()
    return tokens, logprobs


def _unnormalised_probabilities(logits: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """exp(scaled logit - its row's maximum) in float32, with columns of zeros up to a whole number of blocks."""
    rows, vocabulary = logits.shape
    weights = logits.new_zeros(rows, -(-vocabulary // _BLOCK) * _BLOCK, dtype=torch.float32)
    scaled = weights[:, :vocabulary].copy_(logits)
    if any(temperature not in (0, 1) for temperature in temperatures):
        scaled /= torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)[:, None]
    scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
    return weights


def _invert(weights: torch.Tensor, uniforms: torch.Tensor, greedy: Sequence[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """The token at which each row's running sum passes `uniform · total`, and its log-probability (float64)."""
    every_row = torch.arange(len(weights), device=weights.device)
    blocks = weights.view(len(weights), -1, _BLOCK)
    block_sums = blocks.sum(dim=-1).double()
    running = block_sums.cumsum(dim=-1)
    total = running[:, -1]
    target = torch.minimum(uniforms * total, _just_below(total))
    block = torch.searchsorted(running, target[:, None], right=True)[:, 0]
    inside = blocks[every_row, block].double().cumsum(dim=-1)
    rest = (target - running[every_row, block] + block_sums[every_row, block]).clamp(min=0)
    rest = torch.minimum(rest, _just_below(inside[:, -1]))
    chosen = block * _BLOCK + torch.searchsorted(inside, rest[:, None], right=True)[:, 0]
    if any(greedy):
        chosen = torch.where(torch.tensor(greedy, device=weights.device), weights.argmax(dim=-1), chosen)
    return chosen, weights[every_row, chosen].double().log() - total.log()


def _just_below(bound: torch.Tensor) -> torch.Tensor:
    """The largest float64 below each bound: as a target, it still falls on a token with weight above 0."""
    return torch.nextafter(bound, torch.zeros_like(bound))
