"""One forward pass of the engine: which tokens it computes, where they are cached, and what each of them sees.

The tokens of all rollouts stand in a single row: first the last token of every rollout that samples its next one, then stretches
of prompts and of completions that are only written to the cache:

    [ place 0 | place 1 | place 3 |  prompt in slot 2: positions 0 … 30  |  place 2: positions 40 … 49 ]
      decoded: one token a place     segments
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlace:
    """Where a prompt is cached, once for all its rollouts."""

    slot: int
    length: int
    """All tokens but the prompt's last, which is the input of the step that samples the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedToken:
    """The last token of a rollout: it is written to the rollout's place, and its logits give the next one."""

    place: int
    prompt: PromptPlace
    position: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens that are only written to the cache."""

    prompt: PromptPlace
    place: int | None
    """The rollout's place; None for tokens of the prompt itself."""
    start: int
    tokens: Sequence[int]

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + len(self.tokens)


class Step:
    """One forward pass, with everything that is the same for all layers."""

    def __init__(self, decoded: Sequence[DecodedToken], segments: Sequence[Segment], *, device: torch.device, dtype: torch.dtype) -> None:
        self.decoded, self.num_decoded = decoded, len(decoded)
        self.token_ids = _tensor([token.token for token in decoded] + [token for segment in segments for token in segment.tokens], device)
        self.positions = _tensor([token.position for token in decoded] + [p for s in segments for p in range(s.start, s.end)], device)
        self.locations = _locations(decoded, segments)
        self.num_slots = 1 + max(part.prompt.slot for part in (*decoded, *segments))
        self.segments = [(segment, _sight_of_segment(segment, device, dtype)) for segment in segments]
        self._device, self._dtype = device, dtype

    @cached_property
    def places(self) -> "tuple[Cells, Sight]":
        """What the decoded tokens see of their own places; the compiled kernels do without."""
        rows = np.array([token.position - token.prompt.length for token in self.decoded])
        return self._seen([token.place for token in self.decoded], last=rows, at=rows)

    @cached_property
    def prompts(self) -> "tuple[Cells, Sight] | None":
        """What they see of their prompts; None when nothing of any prompt is cached."""
        lengths = np.array([token.prompt.length for token in self.decoded])
        if not lengths.any():
            return None
        at = np.array([token.position for token in self.decoded])
        return self._seen([token.prompt.slot for token in self.decoded], last=lengths - 1, at=at)

    def _seen(self, cell_of_token: Sequence[int], *, last: "Integers", at: "Integers") -> "tuple[Cells, Sight]":
        cells = Cells(cell_of_token, self._device)
        return cells, Sight(cells.spread_numbers(last), cells.spread_numbers(at), device=self._device, dtype=self._dtype)


class Cells:
    """The decoded tokens by the cell whose keys they see, in a rectangle [cells, width]; token 0 stands in its gaps."""

    def __init__(self, cell_of_token: Sequence[int], device: torch.device) -> None:
        cells = np.array(cell_of_token)
        counts = np.bincount(cells)
        rank = np.empty_like(cells)
        rank[np.argsort(cells, kind="stable")] = np.arange(len(cells)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._shape = (len(counts), int(counts.max()))
        entries = cells * self._shape[1] + rank
        self._token_of_entry = np.zeros(len(counts) * counts.max(), dtype=np.int64)
        self._token_of_entry[entries] = np.arange(len(cells))
        self._is_identity = np.array_equal(entries, np.arange(len(self._token_of_entry)))
        self._spread, self._gather = _tensor(self._token_of_entry, device), _tensor(entries, device)

    def spread(self, of_tokens: torch.Tensor) -> torch.Tensor:
        """From [tokens, …] to [cells, width, …]."""
        return (of_tokens if self._is_identity else of_tokens.index_select(0, self._spread)).unflatten(0, self._shape)

    def spread_numbers(self, of_tokens: Integers) -> Integers:
        """The same for numbers."""
        return of_tokens[self._token_of_entry].reshape(self._shape)

    def gather(self, of_cells: torch.Tensor) -> torch.Tensor:
        """From [cells, width, …] back to [tokens, …]."""
        flat = of_cells.flatten(0, 1)
        return flat if self._is_identity else flat.index_select(0, self._gather)


class Sight:
    """Which of its cell's keys each query sees: queries in a rectangle [cells, width], keys by their row in the cell."""

    def __init__(self, last: Integers, at: Integers, *, device: torch.device, dtype: torch.dtype) -> None:
        """Say what is seen.

        Args:
            last: The last row that a query sees, [cells, width].
            at: The query's own row, counted on from the keys', [cells, width]; what a sliding window reaches back from.
            device: Where the masks are used.
            dtype: The type of the scores.
        """
        self.num_keys = int(last.max()) + 1
        self._last, self._at = last[:, :, None], at[:, :, None]
        self._device, self._dtype = device, dtype
        self._masks: dict[tuple[int | None, int], torch.Tensor] = {}

    def mask(self, sliding_window: int | None, *, repeats: int) -> torch.Tensor:
        """To be added to scores: [cells, 1, width · repeats, keys], every query `repeats` times in a row."""
        key = (sliding_window, repeats)
        if key not in self._masks:
            rows = np.arange(self.num_keys)
            hidden = rows > self._last
            if sliding_window is not None:
                hidden |= rows <= self._at - sliding_window
            # Not -inf: a query may see nothing of its prompt, and a softmax over nothing is NaN.
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(torch.from_numpy(hidden), torch.finfo(self._dtype).min)
            self._masks[key] = mask.to(self._device).repeat_interleave(repeats, dim=1)[:, None]
        return self._masks[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locations:
    """Where each token of a step is cached: [tokens] each."""

    in_prompt: NDArray[np.bool_]
    """Whether it is a prompt's; else it stands in a place, behind its prompt."""
    cell: Integers
    """The slot or the place."""
    row: Integers
    """Counted from the start of the prompt, or from its end."""


def _locations(decoded: Sequence[DecodedToken], segments: Sequence[Segment]) -> Locations:
    located = [(False, token.place, token.position - token.prompt.length) for token in decoded]
    for segment in segments:
        in_prompt = segment.place is None
        cell, first = (segment.prompt.slot, 0) if segment.place is None else (segment.place, segment.prompt.length)
        located += [(in_prompt, cell, position - first) for position in range(segment.start, segment.end)]
    in_prompt, cell, row = zip(*located, strict=True)
    return Locations(in_prompt=np.array(in_prompt), cell=np.array(cell), row=np.array(row))


def _sight_of_segment(segment: Segment, device: torch.device, dtype: torch.dtype) -> Sight:
    positions = np.arange(segment.start, segment.end)[None]
    return Sight(positions, positions, device=device, dtype=dtype)


def _tensor(numbers: Sequence[int] | Integers, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(numbers, dtype=torch.long).to(device)
