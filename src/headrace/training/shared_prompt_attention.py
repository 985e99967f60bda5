"""Attention of several completions behind one prompt, each as if it were alone.

A completion's token sees the prompt and its own completion's tokens before it. For models whose layers mix tokens by
attention alone and take positions from rotary embeddings, this gives what separate sequences give
(Periodic Asynchrony, arXiv 2511.18871, "shared-prompt attention"). What no token sees is hardly computed: prompts and completions are
sequences of their own, of which those of similar lengths make a batch, and a completion's first keys are its prompt's. All other layers
of a model get the tokens of all groups one after the other.

Shapes: B sequences, W their longest length, P their longest prompt's, K = P + W, G key-value heads, R query heads for each of them,
D head size.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from headrace.training.collation import RowLayout

_MAX_QUERIES = 256
"""Longer sequences are cut into stretches of queries: only one's scores exist at once, and keys behind its end are left out."""
_MAX_PAIRS = 2**19
"""Pairs of query and key that a batch may have, unless it is a single sequence."""
_MAX_PADDED = 1.25
"""How many times more pairs than it would have without padding."""
_FREE_PAIRS = 2**14
"""So many padded pairs cost less than a batch more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceBatch:
    """Sequences of similar lengths: completions behind their prompts, or prompts behind nothing."""

    tokens: Tensor
    """[B, W] which tokens the sequences consist of; the padding, on the right, repeats a sequence's last one."""
    real: Tensor
    """[B, W] False in the padding."""
    prompt_tokens: Tensor
    """[B, P] which tokens every sequence sees beside its own, padded on the left."""
    prompt_mask: Tensor | None
    """[B, 1, 1, 1, P] float32, added to scores: −inf for the padding; None when there is none."""
    _rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])

    def rows(self, heads: int) -> tuple[Tensor, Tensor]:
        """Of [tokens · heads, D]: the sequences' own [B · heads · W], and with the prompt's before them [B · heads · K]."""
        if heads not in self._rows:
            seen = torch.cat([self.prompt_tokens, self.tokens], dim=1)
            head = torch.arange(heads, device=seen.device)[:, None]
            own, all_rows = ((tokens[:, None] * heads + head).flatten() for tokens in (self.tokens, seen))
            self._rows[heads] = own, all_rows
        return self._rows[heads]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedPromptSequences:
    """All sequences of a pass. Each token is in one of them."""

    batches: tuple[SequenceBatch, ...]
    num_tokens: int
    _places: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def gather(self, parts: list[Tensor], heads: int) -> Tensor:
        """From [B, heads, W, D] of each batch to [tokens, heads, D]."""
        if heads not in self._places:
            self._places[heads] = self._places_of(heads)
        size = parts[0].shape[-1]
        flat = torch.cat([part.reshape(-1, size) for part in parts])
        return flat.index_select(0, self._places[heads]).view(-1, heads, size)

    def _places_of(self, heads: int) -> Tensor:
        """[tokens · heads] where `gather` finds a token's head."""
        places = torch.empty(self.num_tokens, heads, dtype=torch.long, device=self.batches[0].tokens.device)
        head, first = torch.arange(heads, device=places.device), 0
        for batch in self.batches:
            sequence, step = batch.real.nonzero(as_tuple=True)
            width = batch.tokens.shape[1]
            places[batch.tokens[batch.real]] = first + (sequence[:, None] * heads + head) * width + step[:, None]
            first += batch.tokens.numel() * heads
        return places.flatten()


def find_sequences(rows: Sequence[RowLayout], device: torch.device) -> SharedPromptSequences:
    """The sequences that a pass's rows consist of."""
    spans = sorted((span for row in rows for span in _spans_of(row)), key=lambda span: (span.size_of_prompt, span.length))
    batches = [_batch_of(members, device) for members in _alike(spans)]
    return SharedPromptSequences(batches=tuple(batches), num_tokens=sum(span.length for span in spans))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """One sequence's tokens, and its prompt's."""

    start: int
    length: int
    prompt_start: int
    prompt_length: int

    @property
    def size_of_prompt(self) -> int:
        """Equal for prompts that differ by less than about a quarter."""
        return round(math.log(1 + self.prompt_length, _MAX_PADDED))

    @property
    def pairs(self) -> int:
        return self.length * (self.prompt_length + self.length)


def _spans_of(row: RowLayout) -> Iterator[_Span]:
    yield _Span(start=row.start, length=row.prompt_length, prompt_start=row.start, prompt_length=0)
    first = row.start + row.prompt_length
    for start, length in zip(accumulate(row.completion_lengths, initial=first), row.completion_lengths, strict=False):
        yield _Span(start=start, length=length, prompt_start=row.start, prompt_length=row.prompt_length)


def _alike(spans: Sequence[_Span]) -> list[list[_Span]]:
    """Neighbours together, as long as padding costs little."""
    batches: list[list[_Span]] = []
    for span in spans:
        if batches:
            members = [*batches[-1], span]
            longest = max(member.length for member in members)
            padded = len(members) * longest * (max(member.prompt_length for member in members) + longest)
            if padded <= min(_MAX_PAIRS, _MAX_PADDED * sum(member.pairs for member in members) + _FREE_PAIRS):
                batches[-1].append(span)
                continue
        batches.append([span])
    return batches


def _batch_of(spans: Sequence[_Span], device: torch.device) -> SequenceBatch:
    starts, lengths, prompt_starts, prompt_lengths = (
        torch.tensor(values)[:, None]
        for values in zip(*((span.start, span.length, span.prompt_start, span.prompt_length) for span in spans), strict=True)
    )
    steps = torch.arange(int(lengths.max()))[None]
    prompt_steps = torch.arange(int(prompt_lengths.max()))[None] - (prompt_lengths.max() - prompt_lengths)
    prompt_mask = torch.zeros(prompt_steps.shape).masked_fill_(prompt_steps < 0, -torch.inf)[:, None, None, None]
    return SequenceBatch(
        tokens=(starts + torch.minimum(steps, lengths - 1)).to(device),
        real=(steps < lengths).to(device),
        prompt_tokens=(prompt_starts + prompt_steps.clamp(min=0)).to(device),
        prompt_mask=prompt_mask.to(device) if bool(prompt_mask.any()) else None,
    )


def attend_to_shared_prompts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    sequences: SharedPromptSequences,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """softmax(scaling · q · kᵀ) · v of every token over what it sees. Scores are float32, the other products have `value`'s type.

    Args:
        query: [tokens, G · R, D].
        key: [tokens, G, D].
        value: [tokens, G, D].
        sequences: Who belongs together.
        scaling: Factor of the scores.
        window: How many tokens are seen, the query's own included; None for all.
        softcap: Gemma 2: scores become softcap · tanh(scores / softcap).

    Returns:
        [tokens, G · R, D] of `value`'s type.
    """
    scoring = Scoring(window, softcap)
    if query.device.type == "cpu" or softcap is not None:
        return _SharedPromptAttention.apply(query, key, value, sequences, scaling, scoring)
    return attend_by_fused_kernels(query, key, value, sequences, scaling, scoring)


def attend_by_fused_kernels(
    query: Tensor, key: Tensor, value: Tensor, sequences: SharedPromptSequences, scaling: float, scoring: "Scoring"
) -> Tensor:
    """The same by torch's fused attention: faster on GPUs, slower on CPUs, and without a softcap."""
    groups, outputs = key.shape[1], list[Tensor]()
    for batch in sequences.batches:
        queries = _as_queries(query, batch, groups).to(value.dtype)
        keys, values = _as_keys(key, batch).to(value.dtype), _as_keys(value, batch)
        parts = [
            scaled_dot_product_attention(
                stretch.take(queries),
                stretch.seen(keys),
                stretch.seen(values),
                attn_mask=stretch.whole_mask(queries.shape[2]).to(value.dtype),
                scale=scaling,
            )
            for stretch in _stretches(batch, scoring)
        ]
        outputs.append(torch.cat([part.unflatten(2, (queries.shape[2], -1)) for part in parts], dim=3))
    return sequences.gather(outputs, query.shape[1])


class _SharedPromptAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sequences: SharedPromptSequences, scaling: float, scoring: "Scoring"
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.sequences, ctx.scaling, ctx.scoring = sequences, scaling, scoring
        groups = key.shape[1]
        outputs: list[Tensor] = []
        for batch in sequences.batches:
            queries = _as_queries(query, batch, groups).float().mul_(scaling)
            keys, values = _as_keys(key, batch).float(), _as_keys(value, batch)
            output = torch.empty_like(queries, dtype=value.dtype)
            for stretch in _stretches(batch, scoring):
                probabilities, _ = stretch.probabilities(queries, keys)
                stretch.put(output, probabilities.to(value.dtype) @ stretch.seen(values))
            outputs.append(output)
        return sequences.gather(outputs, query.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value = ctx.saved_tensors
        sequences: SharedPromptSequences = ctx.sequences
        groups, dtype = key.shape[1], value.dtype
        grad_key, grad_value = _KeyGradient(key, sequences), _KeyGradient(value, sequences)
        grads_of_queries: list[Tensor] = []
        for batch in sequences.batches:
            queries = _as_queries(query, batch, groups).float().mul_(ctx.scaling)
            keys, values = _as_keys(key, batch).float(), _as_keys(value, batch)
            narrow_queries, narrow_keys = queries.to(dtype), keys.to(dtype)
            # What the padding computes reaches no token, so nothing comes back to it.
            grads = _as_queries(grad, batch, groups).to(dtype).mul_(batch.real[:, None, None, :, None])
            grad_queries = torch.empty_like(queries)
            grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(keys)
            for stretch in _stretches(batch, ctx.scoring):
                probabilities, slope = stretch.probabilities(queries, keys)
                upstream = stretch.take(grads)
                stretch.seen(grad_values).add_(probabilities.to(dtype).mT @ upstream)
                grad_probabilities = (upstream @ stretch.seen(values).mT).float()
                grad_scores = torch._softmax_backward_data(grad_probabilities, probabilities, -1, torch.float32)
                grad_scores = (grad_scores if slope is None else grad_scores * slope).to(dtype)
                stretch.put(grad_queries, grad_scores @ stretch.seen(narrow_keys))
                stretch.seen(grad_keys).add_(grad_scores.mT @ stretch.take(narrow_queries))
            grads_of_queries.append(grad_queries.mul_(ctx.scaling))
            grad_key.add(batch, grad_keys)
            grad_value.add(batch, grad_values)
        grad_query = sequences.gather(grads_of_queries, query.shape[1])
        return grad_query.to(query.dtype), grad_key.total(), grad_value.total(), None, None, None


def _as_queries(per_token: Tensor, batch: SequenceBatch, groups: int) -> Tensor:
    """[tokens, G · R, D] to [B, G, R, W, D]. Heads that share a key-value head are so more queries of it: no key is repeated."""
    _, heads, size = per_token.shape
    taken = per_token.reshape(-1, size).index_select(0, batch.rows(heads)[0])
    return taken.view(len(batch.tokens), groups, heads // groups, -1, size)


def _as_keys(per_token: Tensor, batch: SequenceBatch) -> Tensor:
    """[tokens, G, D] to [B, G, K, D]: the prompt's, then the sequence's own."""
    _, groups, size = per_token.shape
    taken = per_token.reshape(-1, size).index_select(0, batch.rows(groups)[1])
    return taken.view(len(batch.tokens), groups, -1, size)


class _KeyGradient:
    """Sums the gradients of keys, or of values: a prompt's come from itself and from all its completions."""

    def __init__(self, per_token: Tensor, sequences: SharedPromptSequences) -> None:
        self._per_token = per_token
        self._sequences = sequences
        self._own: list[Tensor] = []
        self._prompts: list[Tensor] = []

    def add(self, batch: SequenceBatch, grads: Tensor) -> None:
        """Take in [B, G, K, D]; batches come in their order."""
        prompt_length = batch.prompt_tokens.shape[1]
        self._own.append(grads[:, :, prompt_length:])
        self._prompts.append(grads[:, :, :prompt_length].transpose(1, 2).flatten(0, 1))

    def total(self) -> Tensor:
        """[tokens, G, D]."""
        total = self._sequences.gather(self._own, self._per_token.shape[1])
        prompt_tokens = torch.cat([batch.prompt_tokens.flatten() for batch in self._sequences.batches])
        total.flatten(1).index_add_(0, prompt_tokens, torch.cat(self._prompts).flatten(1))
        return total.to(self._per_token.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stretch:
    """Some consecutive queries of all sequences of a batch, and the keys up to the last of them."""

    start: int
    end: int
    num_keys: int
    mask: Tensor
    """[queries, keys] float32, added to the scores."""
    prompt_mask: Tensor | None
    softcap: float | None

    def take(self, queries: Tensor) -> Tensor:
        """[B, G, R, W, D] to [B, G, R · queries, D]."""
        return queries[..., self.start : self.end, :].flatten(2, 3)

    def put(self, queries: Tensor, part: Tensor) -> None:
        """The reverse, into the stretch's place."""
        queries[..., self.start : self.end, :] = part.unflatten(2, (queries.shape[2], -1))

    def seen(self, keys: Tensor) -> Tensor:
        """[B, G, K, D] to [B, G, keys, D]."""
        return keys[:, :, : self.num_keys]

    def whole_mask(self, siblings: int) -> Tensor:
        """[B or 1, 1, R · queries, keys]."""
        mask = self.mask[None, None]
        if self.prompt_mask is not None:
            prompt_mask = self.prompt_mask[:, 0]
            mask = mask + pad(prompt_mask, (0, self.num_keys - prompt_mask.shape[-1]))
        return mask.repeat(1, 1, siblings, 1)

    def probabilities(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Softmax of the scores [B, G, R · queries, keys], and the slope of the softcap at them, if there is one."""
        scores, slope = self.take(queries) @ self.seen(keys).mT, None
        if self.softcap is not None:
            tanh = (scores / self.softcap).tanh_()
            scores, slope = tanh * self.softcap, 1 - tanh.square()
        by_head = scores.unflatten(2, (queries.shape[2], -1)).add_(self.mask)
        if self.prompt_mask is not None:
            by_head[..., : self.prompt_mask.shape[-1]].add_(self.prompt_mask)
        return torch.softmax(scores, dim=-1), slope


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """What a layer does with scores before the softmax."""

    window: int | None
    softcap: float | None


def _stretches(batch: SequenceBatch, scoring: Scoring) -> Iterator[_Stretch]:
    prompt_length, width = batch.prompt_tokens.shape[1], batch.tokens.shape[1]
    for start in range(0, width, _MAX_QUERIES):
        end = min(start + _MAX_QUERIES, width)
        num_keys = prompt_length + end
        yield _Stretch(
            start=start,
            end=end,
            num_keys=num_keys,
            mask=_mask(end - start, num_keys, scoring.window, batch.tokens.device),
            prompt_mask=batch.prompt_mask,
            softcap=scoring.softcap,
        )


@lru_cache(maxsize=64)
def _mask(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """The last query is the last key's token; so the padding, which is behind a sequence's end, is seen by padding alone."""
    query = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    distance = query - torch.arange(num_keys, device=device)
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    return torch.zeros(num_queries, num_keys, device=device).masked_fill_(hidden, -torch.inf)
