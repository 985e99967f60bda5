"""The key-value cache of the running rollouts.

A prompt is cached once, in a numbered *slot*; what a rollout has behind it is cached in the rollout's *place*. The keys
and values of a token at position t are in row t of its prompt's slot, or in row t - (prompt length) of its place.
"""

from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from headrace.rollout.step import DecodedToken, Step

_GROWTH = 64
"""Rows by which places and slots grow: memory follows the lengths of prompts and rollouts, not their limits."""


class PlaceCache(Cache):
    """Keys and values of every layer, [rows, 2, heads, head size]: those of all places, then those of all slots."""

    def __init__(self, num_places: int) -> None:
        super().__init__(layers=[])
        self._num_places, self._num_slots = num_places, 1
        self._place_rows, self._slot_rows = 0, 0
        self._layers: dict[int, torch.Tensor] = {}

    @property
    def num_cached_layers(self) -> int:
        """Layers that have written to the cache so far."""
        return len(self._layers)

    def begin(self, step: Step) -> None:
        """Make room for a step's tokens, and remember where they go."""
        located = step.locations
        self._grow(
            num_slots=step.num_slots,
            place_rows=1 + located.row[~located.in_prompt].max(initial=0),
            slot_rows=1 + located.row[located.in_prompt].max(initial=0),
        )
        in_slots = self._num_places * self._place_rows + located.cell * self._slot_rows
        rows = np.where(located.in_prompt, in_slots, located.cell * self._place_rows) + located.row
        self.rows = torch.from_numpy(rows).to(step.token_ids.device)
        """Where the step's tokens go."""
        self._spans: dict[int | None, torch.Tensor] = {}

    def layer(self, layer: int, keys_values: torch.Tensor) -> torch.Tensor:
        """A layer's keys and values; allocated for such as a step's [tokens, 2, heads, head size] when they are the first."""
        if layer not in self._layers:
            # Zeros, because what a mask hides is still multiplied by 0, and stray memory may hold NaN.
            self._layers[layer] = keys_values.new_zeros(self._num_rows, *keys_values.shape[1:])
        return self._layers[layer]

    def cells(self, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a layer's keys and values, all places' and all slots' [cells, rows, 2, heads, head size]."""
        return self._places(stored), self._slots(stored)

    def spans(self, step: Step, sliding_window: int | None) -> torch.Tensor:
        """The rows that each decoded token sees: first one and number, of its prompt and behind it, [tokens, 2, 2]."""
        if sliding_window not in self._spans:
            self._spans[sliding_window] = torch.tensor([self._span(token, sliding_window) for token in step.decoded], dtype=torch.long)
        return self._spans[sliding_window]

    def _span(self, token: DecodedToken, sliding_window: int | None) -> tuple[tuple[int, int], tuple[int, int]]:
        length, end = token.prompt.length, token.position + 1
        first = 0 if sliding_window is None else max(0, end - sliding_window)
        in_prompt, behind = min(first, length), max(first - length, 0)
        slot = self._num_places * self._place_rows + token.prompt.slot * self._slot_rows
        return (slot + in_prompt, length - in_prompt), (token.place * self._place_rows + behind, end - length - behind)

    def write(self, layer: int, keys_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values [tokens, 2, heads, head size]; returns the layer's `cells`."""
        stored = self.layer(layer, keys_values)
        stored.index_copy_(0, self.rows, keys_values)
        return self.cells(stored)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`write` as transformers' models call it, with states [1, heads, tokens, head size]."""
        return self.write(layer_idx, torch.stack((key_states[0], value_states[0])).permute(2, 0, 1, 3))

    def copy(self, *, source: int, target: int, length: int) -> None:
        """Copy the first `length` rows of a place to another one."""
        for stored in self._layers.values():
            places = self._places(stored)
            places[target, :length] = places[source, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are given to the model explicitly, as rollouts differ in length."""
        return 0

    @property
    def _num_rows(self) -> int:
        return self._num_places * self._place_rows + self._num_slots * self._slot_rows

    def _places(self, stored: torch.Tensor) -> torch.Tensor:
        return stored[: self._num_places * self._place_rows].unflatten(0, (self._num_places, self._place_rows))

    def _slots(self, stored: torch.Tensor) -> torch.Tensor:
        return stored[self._num_places * self._place_rows :].unflatten(0, (self._num_slots, self._slot_rows))

    def _grow(self, *, num_slots: int, place_rows: int, slot_rows: int) -> None:
        grown = max(self._num_slots, num_slots), max(self._place_rows, _rounded(place_rows)), max(self._slot_rows, _rounded(slot_rows))
        if grown == (self._num_slots, self._place_rows, self._slot_rows):
            return
        before = {layer: (self._places(stored), self._slots(stored)) for layer, stored in self._layers.items()}
        self._num_slots, self._place_rows, self._slot_rows = grown
        for layer, (places, slots) in before.items():
            stored = places.new_zeros(self._num_rows, *places.shape[2:])
            self._places(stored)[:, : places.shape[1]] = places
            self._slots(stored)[: slots.shape[0], : slots.shape[1]] = slots
            self._layers[layer] = stored


def _rounded(rows: int) -> int:
    return -(-rows // _GROWTH) * _GROWTH
