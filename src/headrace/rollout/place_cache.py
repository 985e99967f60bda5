"""The key-value cache of the running rollouts, and attention over it.

A running rollout lives in a numbered *place*; its token at position t has its keys and values at row t of that
place. One `Step` computes, in one forward pass over a single row of tokens, the next token of every place that
is ready and a stretch of prompt for those that are not:

    tokens   [ place 0 | place 1 | place 3 |  place 2: positions 40 … 79  |  place 4: positions 0 … 30 ]
               decoded: one query a place                    prefilled: segments

`place_attention` is registered with transformers as an attention implementation, so that any model of the library
that leaves its attention open runs on this cache; everything else in a model works on tokens one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from headrace.errors import ModelError

ATTENTION_NAME = "headrace_places"

_GROWTH = 256
"""Positions by which the cache grows: memory follows the rollouts' lengths, not the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedToken:
    """The last token of a rollout: it is written to the cache, and its logits give the next one."""

    place: int
    position: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens of one place that are only written to the cache."""

    place: int
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + len(self.tokens)


class Step:
    """One forward pass: what is computed, where it is written, and the masks, built once for all layers."""

    def __init__(self, decoded: Sequence[DecodedToken], segments: Sequence[Segment], *, device: torch.device, dtype: torch.dtype) -> None:
        self.num_decoded = len(decoded)
        self.segments = segments
        self.num_places = 1 + max((token.place for token in decoded), default=-1)
        self.decoded_length = 1 + max((token.position for token in decoded), default=-1)
        self.longest = max([self.decoded_length, *(segment.end for segment in segments)])
        self._device, self._dtype = device, dtype
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}
        self.token_ids = self._integers([token.token for token in decoded] + [t for s in segments for t in s.tokens])
        self.positions = self._integers([token.position for token in decoded] + [p for s in segments for p in range(s.start, s.end)])
        self.places = self._integers([token.place for token in decoded] + [s.place for s in segments for _ in s.tokens])
        position_of_place = [0] * self.num_places
        for token in decoded:
            position_of_place[token.place] = token.position
        self._position_of_place = self._integers(position_of_place)

    @property
    def decodes_every_place(self) -> bool:
        """Whether the decoded tokens are those of places 0, 1, 2, … without a gap."""
        return self.num_decoded == self.num_places

    def decode_mask(self, sliding_window: int | None) -> torch.Tensor:
        """Additive mask [places, 1, 1, positions] of the decoded tokens; a place without one sees its position 0."""
        key = (-1, sliding_window)
        if key not in self._masks:
            self._masks[key] = self._additive_mask(self._position_of_place, self.decoded_length, sliding_window)[:, None, None]
        return self._masks[key]

    def segment_mask(self, segment: Segment, sliding_window: int | None) -> torch.Tensor:
        """Additive mask [queries, positions] of a segment."""
        key = (segment.place, sliding_window)
        if key not in self._masks:
            queries = torch.arange(segment.start, segment.end, device=self._device)
            self._masks[key] = self._additive_mask(queries, segment.end, sliding_window)
        return self._masks[key]

    def _additive_mask(self, queries: torch.Tensor, num_keys: int, sliding_window: int | None) -> torch.Tensor:
        keys = torch.arange(num_keys, device=self._device)
        hidden = keys > queries[:, None]
        if sliding_window is not None:
            hidden |= keys <= queries[:, None] - sliding_window
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -torch.inf)

    def _integers(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


class PlaceCache(Cache):
    """Keys and values [places, positions, heads, head size] of every layer, allocated as layers and positions come up."""

    def __init__(self, num_places: int) -> None:
        super().__init__(layers=[])
        self._num_places = num_places
        self._capacity = 0
        self._storage: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def num_cached_layers(self) -> int:
        """Layers that have written to the cache so far."""
        return len(self._storage)

    def begin(self, step: Step) -> None:
        """Make room for a step's tokens and remember where they go."""
        if step.longest > self._capacity:
            self._capacity = -(-step.longest // _GROWTH) * _GROWTH
            self._storage = {layer: (self._grown(keys), self._grown(values)) for layer, (keys, values) in self._storage.items()}
        self._rows = step.places * self._capacity + step.positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values [1, heads, tokens, head size]; returns the layer's whole storage for `place_attention`."""
        if layer_idx not in self._storage:
            self._storage[layer_idx] = (self._empty(key_states), self._empty(value_states))
        keys, values = self._storage[layer_idx]
        keys.flatten(0, 1).index_copy_(0, self._rows, key_states[0].transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, self._rows, value_states[0].transpose(0, 1))
        return keys, values

    def copy(self, *, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a place to another one."""
        for keys, values in self._storage.values():
            keys[target, :length] = keys[source, :length]
            values[target, :length] = values[source, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are given to the model explicitly, as places differ in length."""
        return 0

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, because what a mask hides is still multiplied by 0, and stray memory may hold NaN.
        return states.new_zeros(self._num_places, self._capacity, states.shape[1], states.shape[3])

    def _grown(self, stored: torch.Tensor) -> torch.Tensor:
        grown = stored.new_zeros(self._num_places, self._capacity, *stored.shape[2:])
        grown[:, : stored.shape[1]] = stored
        return grown


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
    """Attention of a step's tokens, each over its own place.

    Args:
        module: The layer; not used.
        query: [1, heads, tokens, head size].
        key: The layer's storage [places, positions, key-value heads, head size], as `PlaceCache.update` returns it.
        value: The same for values.
        attention_mask: None: transformers makes no masks for an attention that it has no mask function for.
        step: What the tokens are; handed through the model's keyword arguments.
        scaling: Factor of the scores; None means 1 / sqrt(head size).
        sliding_window: Positions that a token sees, itself included; None means all.
        softcap: Scores become softcap · tanh(score / softcap).
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
    mixed = []
    if step.num_decoded:
        mixed.append(_attend_decoded(query, key, value, step, step.decode_mask(sliding_window), scaling, softcap))
    first = step.num_decoded
    for segment in step.segments:
        queries = query[0, :, first : first + len(segment.tokens)]
        mask = step.segment_mask(segment, sliding_window)
        mixed.append(_attend_segment(queries, key[segment.place], value[segment.place], mask, scaling, softcap))
        first += len(segment.tokens)
    return (mixed[0] if len(mixed) == 1 else torch.cat(mixed))[None], None


def _attend_decoded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: Step,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    # The query heads that share a key-value head stand where a sequence of queries would: no key is copied.
    queries = query[0, :, : step.num_decoded].unflatten(0, (key.shape[2], -1)).permute(2, 0, 1, 3)
    places = step.places[: step.num_decoded]
    if not step.decodes_every_place:
        queries = queries.new_zeros(step.num_places, *queries.shape[1:]).index_copy_(0, places, queries)
    keys = key[: step.num_places, : step.decoded_length].transpose(1, 2)
    values = value[: step.num_places, : step.decoded_length].transpose(1, 2)
    mixed = _attend(queries, keys, values, mask, scaling, softcap).flatten(1, 2)
    return mixed if step.decodes_every_place else mixed[places]


def _attend_segment(
    queries: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    queries = queries.unflatten(0, (key.shape[1], -1))
    end = mask.shape[1]
    keys = key[:end].transpose(0, 1)[:, None].expand(-1, queries.shape[1], -1, -1)
    values = value[:end].transpose(0, 1)[:, None].expand(-1, queries.shape[1], -1, -1)
    return _attend(queries, keys, values, mask, scaling, softcap).flatten(0, 1).transpose(0, 1)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float | None, softcap: float | None
) -> torch.Tensor:
    if softcap is None:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scaling)
    scores = torch.matmul(queries, keys.transpose(-1, -2)) * (scaling or queries.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) + mask
    return torch.matmul(scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype), values)


AttentionInterface.register(ATTENTION_NAME, place_attention)
