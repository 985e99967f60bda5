"""Log-probabilities of given tokens from final hidden states, without keeping a [positions, vocabulary] matrix.

The output layer is applied to blocks of the vocabulary, and again in the backward pass. A softmax over blocks is a running
one; every row of the weight's gradient is finished within its block and added to the gradient once. Positions
that predict several tokens (a shared prompt's last one) are computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.training.gradients import CastWeight, gradient_rows

MAX_BLOCK_LOGITS = 2**21
"""Logits computed at once: 8 MiB of float32, which a core's cache holds in part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputHead:
    """What turns a final hidden state into logits: softcap(scale · (weight · h + bias))."""

    weight: Tensor
    """[vocabulary, hidden]; the embedding itself when the model ties them."""
    bias: Tensor | None
    scale: float
    softcap: float | None
    """Gemma 2: logits become softcap · tanh(logits / softcap)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """What a policy says about given tokens."""

    logprobs: Tensor
    """[tokens] float32, of the tempered distribution."""
    entropies: Tensor
    """[tokens] float32, in nats: of the distribution that each token was drawn from."""


def score_tokens(
    hidden: Tensor,
    head: OutputHead,
    *,
    position_of_token: Tensor,
    token_ids: Tensor,
    temperature: float,
    cast_weight: CastWeight,
) -> TokenScores:
    """Score tokens under softmax(logits / temperature); `backward` reaches `hidden`, and adds to `.grad` of the head's weights.

    Args:
        hidden: [positions, hidden] final hidden states that predict at least one token each.
        head: The output layer.
        position_of_token: [tokens] row of `hidden` that predicts the token.
        token_ids: [tokens].
        temperature: Softmax temperature, above 0.
        cast_weight: The head's weight in the type of the matrix products; everything after them is float32.
    """
    layer = _OutputLayer(cast_weight.get(), head, temperature)
    chosen, normalisers, entropies = _BlockedScores.apply(hidden, head.weight, head.bias, position_of_token, token_ids, layer)
    return TokenScores(logprobs=chosen - normalisers[position_of_token], entropies=entropies[position_of_token])


@torch.no_grad()
def logprob_gradients(
    hidden: Tensor,
    head: OutputHead,
    *,
    position_of_token: Tensor,
    token_ids: Tensor,
    temperature: float,
    cast_weight: CastWeight,
) -> Tensor:
    """∂ log π / ∂ hidden state of each token's own position [tokens, hidden] float32: its row of the output layer less the expected one.

    Args as `score_tokens`.
    """
    layer = _OutputLayer(cast_weight.get(), head, temperature)
    cast_hidden = hidden.to(layer.weight.dtype)
    blocks = _blocks(len(hidden), len(layer.weight), position_of_token, token_ids)
    memory, softmax = _BlockMemory(blocks, cast_hidden), _RunningSoftmax(len(hidden), hidden.device)
    for block in blocks:
        softmax.add(layer.logits(cast_hidden, block.rows, memory), memory.powers(block.rows))
    normalisers = softmax.log_normalisers()
    expected = torch.zeros_like(hidden, dtype=torch.float32)
    own = hidden.new_empty(len(token_ids), hidden.shape[1], dtype=torch.float32)
    for block in blocks:
        logits = layer.logits(cast_hidden, block.rows, memory)
        tanh = layer.tanh(logits)
        of_tokens = None if tanh is None else tanh[block.positions, block.columns]
        factors = layer.grad_of_products(torch.ones_like(block.columns, dtype=torch.float32), of_tokens)
        own[block.tokens] = factors[:, None] * layer.weight[token_ids[block.tokens]]
        grad = layer.grad_of_products(logits.sub_(normalisers[:, None]).exp_(), tanh)
        expected += memory.products(block.rows).copy_(grad) @ layer.weight[block.rows]
    return own - expected[position_of_token]


class _BlockedScores(torch.autograd.Function):
    """Logit of each token [tokens]; log of the softmax's denominator and entropy of each position [positions]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        position_of_token: Tensor,
        token_ids: Tensor,
        layer: "_OutputLayer",
    ) -> tuple[Tensor, Tensor, Tensor]:
        cast_hidden = hidden.to(layer.weight.dtype)
        blocks = _blocks(len(hidden), len(weight), position_of_token, token_ids)
        chosen = hidden.new_empty(len(token_ids), dtype=torch.float32)
        softmax = _RunningSoftmax(len(hidden), hidden.device)
        memory = _BlockMemory(blocks, cast_hidden)
        for block in blocks:
            logits = layer.logits(cast_hidden, block.rows, memory)
            chosen[block.tokens] = logits[block.positions, block.columns]
            softmax.add(logits, memory.powers(block.rows))
        normalisers, entropies = softmax.log_normalisers(), softmax.entropies()
        ctx.save_for_backward(cast_hidden, normalisers, entropies)
        ctx.layer, ctx.blocks, ctx.weight, ctx.bias, ctx.hidden_dtype = layer, blocks, weight, bias, hidden.dtype
        ctx.set_materialize_grads(False)
        return chosen, normalisers, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_chosen, grad_normalisers, grad_entropies = grad_outputs
        cast_hidden, normalisers, entropies = ctx.saved_tensors
        layer: _OutputLayer = ctx.layer
        grad_hidden = torch.zeros_like(cast_hidden, dtype=torch.float32)
        memory = _BlockMemory(ctx.blocks, cast_hidden)
        for block in ctx.blocks:
            logits = layer.logits(cast_hidden, block.rows, memory)
            tanh = layer.tanh(logits)
            grad = _grad_of_logits(logits, normalisers, entropies, grad_normalisers, grad_entropies)
            if grad_chosen is not None:
                grad.index_put_((block.positions, block.columns), grad_chosen[block.tokens], accumulate=True)
            grad = layer.grad_of_products(grad, tanh)
            if ctx.bias is not None and ctx.bias.requires_grad:
                gradient_rows(ctx.bias)[block.rows].add_(grad.sum(dim=0))
            cast_grad = memory.products(block.rows).copy_(grad)
            grad_hidden += cast_grad @ layer.weight[block.rows]
            if ctx.weight.requires_grad:
                gradient_rows(ctx.weight)[block.rows].add_(cast_grad.T @ cast_hidden)
        return grad_hidden.to(ctx.hidden_dtype), None, None, None, None, None


class _OutputLayer:
    """The head with its weight in the type of the products, and the temperature."""

    def __init__(self, weight: Tensor, head: OutputHead, temperature: float) -> None:
        self.weight = weight
        self._bias = None if head.bias is None else head.bias.detach()
        self._factor = head.scale / temperature
        self._cap = None if head.softcap is None else head.softcap / temperature

    def logits(self, hidden: Tensor, rows: slice, memory: "_BlockMemory") -> Tensor:
        """Tempered logits, float32 [positions, rows]."""
        logits = memory.logits(rows).copy_(torch.mm(hidden, self.weight[rows].T, out=memory.products(rows)))
        if self._bias is not None:
            logits += self._bias[rows]
        if self._factor != 1:
            logits *= self._factor
        return logits if self._cap is None else logits.div_(self._cap).tanh_().mul_(self._cap)

    def tanh(self, logits: Tensor) -> Tensor | None:
        """Of the softcap, from its result; None without one."""
        return None if self._cap is None else logits / self._cap

    def grad_of_products(self, grad: Tensor, tanh: Tensor | None) -> Tensor:
        """From the gradient of the tempered logits to that of `weight · h + bias`; overwrites `grad`."""
        if tanh is not None:
            grad *= 1 - tanh.square_()
        return grad if self._factor == 1 else grad.mul_(self._factor)


class _BlockMemory:
    """Memory that all blocks use in turn: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self, blocks: "Sequence[_Block]", hidden: Tensor) -> None:
        self._positions = len(hidden)
        size = self._positions * max(block.rows.stop - block.rows.start for block in blocks)
        self._logits, self._powers = hidden.new_empty(2, size, dtype=torch.float32)
        self._products = hidden.new_empty(size)

    def logits(self, rows: slice) -> Tensor:
        """[positions, rows] float32."""
        return self._view(self._logits, rows)

    def powers(self, rows: slice) -> Tensor:
        """[positions, rows] float32."""
        return self._view(self._powers, rows)

    def products(self, rows: slice) -> Tensor:
        """[positions, rows] of the type of matrix products."""
        return self._view(self._products, rows)

    def _view(self, memory: Tensor, rows: slice) -> Tensor:
        width = rows.stop - rows.start
        return memory[: self._positions * width].view(self._positions, width)


class _RunningSoftmax:
    """Denominator and entropy of a softmax whose logits come in blocks of columns.

    With m the largest logit so far, z = Σ exp(l − m) and t = Σ exp(l − m) (l − m): then log Σ exp(l) = m + log z, and the
    entropy is log z − t / z.
    """

    def __init__(self, positions: int, device: torch.device) -> None:
        # Far below any logit, but finite: the first correction is then 0, not the NaN of −inf · 0.
        self._largest = torch.full((positions,), torch.finfo(torch.float32).min / 4, device=device)
        self._sum = torch.zeros(positions, device=device)
        self._weighted_sum = torch.zeros(positions, device=device)

    def add(self, logits: Tensor, powers: Tensor) -> None:
        """Take in a block [positions, columns]; it and `powers`, of the same shape, are overwritten."""
        largest = torch.maximum(self._largest, logits.amax(dim=1))
        shift = self._largest - largest
        correction = shift.exp()
        logits -= largest[:, None]
        torch.exp(logits, out=powers)
        self._weighted_sum = correction * (self._weighted_sum + shift * self._sum) + logits.mul_(powers).sum(dim=1)
        self._sum = correction * self._sum + powers.sum(dim=1)
        self._largest = largest

    def log_normalisers(self) -> Tensor:
        """Of the softmax's denominator: log Σ exp(l) [positions]."""
        return self._largest + self._sum.log()

    def entropies(self) -> Tensor:
        """[positions], in nats."""
        return self._sum.log() - self._weighted_sum / self._sum


def _grad_of_logits(
    logits: Tensor, normalisers: Tensor, entropies: Tensor, grad_normalisers: Tensor | None, grad_entropies: Tensor | None
) -> Tensor:
    """Through log Σ exp (its gradient is p) and the entropy H (its gradient is −p (log p + H)); overwrites the logits."""
    logprobs = logits.sub_(normalisers[:, None])
    if grad_entropies is None:
        assert grad_normalisers is not None, "a backward pass needs a gradient of the log-probabilities or of the entropies"
        return logprobs.exp_().mul_(grad_normalisers[:, None])
    weight = -grad_entropies[:, None] * (logprobs + entropies[:, None])
    return logprobs.exp_().mul_(weight if grad_normalisers is None else weight + grad_normalisers[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Rows of the output layer's weight, and the tokens among them."""

    rows: slice
    tokens: Tensor
    """Which tokens have their id in the block."""
    positions: Tensor
    """Of these tokens: where they are predicted."""
    columns: Tensor
    """Of these tokens: id, counted from the block's first."""


def _blocks(positions: int, vocabulary: int, position_of_token: Tensor, token_ids: Tensor) -> list[_Block]:
    size = 2 ** max(0, (MAX_BLOCK_LOGITS // max(positions, 1)).bit_length() - 1)  # A power of two, so that few sizes occur.
    starts = range(0, vocabulary, size)
    sorted_ids, order = torch.sort(token_ids, stable=True)
    cuts: list[int] = torch.searchsorted(sorted_ids, torch.tensor([*starts, vocabulary], device=token_ids.device)).tolist()
    return [
        _Block(
            slice(start, min(start + size, vocabulary)),
            tokens := order[cuts[i] : cuts[i + 1]],
            position_of_token[tokens],
            token_ids[tokens] - start,
        )
        for i, start in enumerate(starts)
    ]
