"""Attention of a step's tokens over the cache: siblings read their prompt together.

The keys and values of a prompt are cached once for all its rollouts, and all queries over them are one matrix product. A decoded
token's attention is so computed in two parts, over its prompt and over what its rollout has behind it, and joined by
their softmax's denominators (as in Hydragen, arXiv 2402.05099, §3.1):

    o = w · o_own + (1 - w) · o_prompt      w = sigmoid(log Σ exp(scores of own) - log Σ exp(scores of prompt))

`place_attention` is registered with transformers as an attention implementation, so that any model of the library
that leaves its attention open runs on this cache; everything else in a model works on tokens one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from headrace.errors import ModelError
from headrace.rollout.step import Segment, Sight, Step

ATTENTION_NAME = "headrace_places"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """How one layer's scores are made."""

    scaling: float | None = None
    """Factor of the scores; None means 1 / sqrt(head size)."""
    sliding_window: int | None = None
    """Positions that a token sees, itself included; None means all."""
    softcap: float | None = None
    """Scores become softcap · tanh(score / softcap)."""


def attend_step(queries: torch.Tensor, places: torch.Tensor, prompts: torch.Tensor, step: Step, kind: AttentionKind) -> torch.Tensor:
    """Every token over its own rollout and prompt.

    Args:
        queries: [tokens, heads, head size].
        places: The layer's keys and values of all places, [places, rows, 2, key-value heads, head size].
        prompts: The same of all prompts, [slots, rows, 2, key-value heads, head size].
        step: What the tokens are.
        kind: How scores are made.

    Returns:
        [tokens, heads, head size].
    """
    decoded = [_attend_decoded(queries[: step.num_decoded], places, prompts, step, kind)] if step.num_decoded else []
    return torch.cat([*decoded, *attend_segments(queries, places, prompts, step, kind)])


def attend_segments(
    queries: torch.Tensor, places: torch.Tensor, prompts: torch.Tensor, step: Step, kind: AttentionKind
) -> Iterator[torch.Tensor]:
    """The tokens behind the decoded ones, segment by segment; see `attend_step`."""
    first = step.num_decoded
    for segment, sight in step.segments:
        last = first + len(segment.tokens)
        yield _attend(queries[None, first:last], _keys_values(segment, places, prompts), sight, kind)[0][0]
        first = last


def _attend_decoded(queries: torch.Tensor, places: torch.Tensor, prompts: torch.Tensor, step: Step, kind: AttentionKind) -> torch.Tensor:
    cells, sight = step.places
    own, own_weight = (cells.gather(found) for found in _attend(cells.spread(queries), places, sight, kind))
    if step.prompts is None:
        return own
    cells, sight = step.prompts
    shared, shared_weight = (cells.gather(found) for found in _attend(cells.spread(queries), prompts, sight, kind))
    weight = torch.sigmoid(own_weight - shared_weight)
    return torch.lerp(shared, own, weight[..., None].to(own.dtype))


def _keys_values(segment: Segment, places: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """Those of one rollout or prompt in the order of positions, [1, positions, 2, key-value heads, head size]."""
    prompt = prompts[segment.prompt.slot]
    if segment.place is None:
        return prompt[None, : segment.end]
    length = segment.prompt.length
    return torch.cat((prompt[:length], places[segment.place, : segment.end - length]))[None]


def _attend(queries: torch.Tensor, keys_values: torch.Tensor, sight: Sight, kind: AttentionKind) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [cells, width, heads, head size] over their cells' keys; returns the like, and log Σ exp(scores) [cells, width, heads]."""
    cells, width, heads, _ = queries.shape
    keys, values = keys_values[:cells, : sight.num_keys].permute(2, 0, 3, 1, 4)
    assert (keys.shape[0], keys.shape[2]) == (cells, sight.num_keys), "the cache is smaller than the step"
    # The query heads that share a key-value head stand where further queries would: no key is copied.
    repeats = heads // keys.shape[1]
    grouped = queries.unflatten(2, (-1, repeats)).transpose(1, 2).flatten(2, 3)
    mixed, log_sum = _softmax_attention(grouped, keys, values, sight.mask(kind.sliding_window, repeats=repeats), kind)
    mixed = mixed.unflatten(2, (width, repeats)).transpose(1, 2).flatten(2, 3)
    return mixed, log_sum.unflatten(2, (width, repeats)).transpose(1, 2).flatten(2, 3)


def _softmax_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, kind: AttentionKind
) -> tuple[torch.Tensor, torch.Tensor]:
    """[cells, heads, queries, head size] each; returns the like, and log Σ exp(scores) in float32."""
    if kind.softcap is None and queries.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, attn_mask=mask, scale=kind.scaling)
    scores = torch.matmul(queries, keys.transpose(-1, -2)).float() * (kind.scaling or queries.shape[-1] ** -0.5)
    if kind.softcap is not None:
        scores = kind.softcap * torch.tanh(scores / kind.softcap)
    scores += mask
    log_sum = scores.logsumexp(dim=-1)
    return torch.matmul((scores - log_sum[..., None]).exp().to(values.dtype), values), log_sum


def place_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    step: Step,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`attend_step` as transformers' models call it.

    Args:
        module: The layer.
        query: [1, heads, tokens, head size].
        key: The places' keys and values, as `PlaceCache.update` returns them.
        value: The prompts' keys and values, as `PlaceCache.update` returns them.
        attention_mask: None: transformers makes no masks for an attention that it has no mask function for.
        step: What the tokens are; handed through the model's keyword arguments.
        scaling: See `AttentionKind`.
        sliding_window: See `AttentionKind`.
        softcap: See `AttentionKind`.
        kwargs: Whatever else a model gives its attention.

    Returns:
        [1, tokens, heads, head size], and None for the attention weights.

    Raises:
        ModelError: The model adds a bias or sinks to its attention.
    """
    if extra := [name for name in ("position_bias", "s_aux") if kwargs.get(name) is not None]:
        raise ModelError(
            f"the embedded engine has no {extra[0]!r} in its attention, which {type(module).__name__} uses; take another model"
        )
    kind = AttentionKind(scaling=scaling, sliding_window=sliding_window, softcap=softcap)
    return attend_step(query[0].transpose(0, 1), key, value, step, kind)[None], None


AttentionInterface.register(ATTENTION_NAME, place_attention)
