"""Log-probabilities of given tokens from final hidden states, without keeping a [positions, vocabulary] matrix.

The output layer is applied in chunks of positions, and again in the backward pass, so that memory does not grow with
the number of tokens. Positions that predict several tokens (a shared prompt's last one) are computed once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_CHUNK_ELEMENTS = 2**23
"""Logits computed at once: 32 MiB of float32."""


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
    compute_dtype: torch.dtype,
) -> TokenScores:
    """Score tokens under softmax(logits / temperature); differentiable in `hidden` and in the head.

    Args:
        hidden: [positions, hidden] final hidden states that predict at least one token each.
        head: The output layer.
        position_of_token: [tokens] row of `hidden` that predicts the token; never decreasing.
        token_ids: [tokens].
        temperature: Softmax temperature, above 0.
        compute_dtype: Arithmetic of the matrix products; everything after them is float32.
    """
    chosen, normalisers, entropies = _ChunkedScores.apply(
        hidden, head.weight, head.bias, position_of_token, token_ids, head.scale, head.softcap, temperature, compute_dtype
    )
    return TokenScores(logprobs=chosen - normalisers[position_of_token], entropies=entropies[position_of_token])


class _ChunkedScores(torch.autograd.Function):
    """Logit of each token [tokens]; log of the softmax's denominator and entropy of each position [positions]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        position_of_token: Tensor,
        token_ids: Tensor,
        scale: float,
        softcap: float | None,
        temperature: float,
        compute_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        positions = len(hidden)
        layer = _OutputLayer(weight.to(compute_dtype), bias, scale, softcap, temperature)
        cast_hidden = hidden.to(compute_dtype)
        chosen = hidden.new_empty(len(token_ids), dtype=torch.float32)
        normalisers = hidden.new_empty(positions, dtype=torch.float32)
        entropies = hidden.new_empty(positions, dtype=torch.float32)
        for rows, tokens in _chunks(positions, len(weight), position_of_token):
            logits = layer.logits(cast_hidden[rows])
            chosen[tokens] = logits[position_of_token[tokens] - rows.start, token_ids[tokens]]
            normalisers[rows] = torch.logsumexp(logits, dim=-1)
            logits -= normalisers[rows, None]
            entropies[rows] = -torch.linalg.vecdot(logits.exp(), logits)
        ctx.save_for_backward(hidden, cast_hidden, weight, position_of_token, token_ids, normalisers, entropies)
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        return chosen, normalisers, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_chosen, grad_normalisers, grad_entropies = grad_outputs
        hidden, cast_hidden, weight, position_of_token, token_ids, normalisers, entropies = ctx.saved_tensors
        layer: _OutputLayer = ctx.layer
        grad_hidden = torch.zeros_like(cast_hidden)
        grad_weight: Tensor | None = None
        grad_bias = None if layer.bias is None else torch.zeros_like(layer.bias)
        for rows, tokens in _chunks(len(hidden), len(weight), position_of_token):
            logits = layer.logits(cast_hidden[rows])
            grad = _grad_of_logits(logits, rows, normalisers, entropies, grad_normalisers, grad_entropies)
            if grad_chosen is not None:
                index = (position_of_token[tokens] - rows.start, token_ids[tokens])
                grad.index_put_(index, grad_chosen[tokens], accumulate=True)
            grad = layer.grad_of_products(grad, logits)
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
            cast_grad = grad.to(cast_hidden.dtype)
            grad_hidden[rows] = cast_grad @ layer.weight
            product = cast_grad.T @ cast_hidden[rows]
            # Chunks are added up in the weight's own type; the first one is not added to zeros, which would take another pass over it.
            grad_weight = product.to(weight.dtype) if grad_weight is None else grad_weight.add_(product)
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None, None, None, None


@dataclass(frozen=True, slots=True, eq=False)
class _OutputLayer:
    """The head with its weight in the dtype of the products, and the temperature."""

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None
    temperature: float

    def logits(self, hidden: Tensor) -> Tensor:
        """Tempered logits, float32 [positions, vocabulary], in memory of their own."""
        logits = (hidden @ self.weight.T).float()
        if self.bias is not None:
            logits += self.bias
        if self.softcap is not None:
            logits = logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap / self.temperature)
        elif self.scale != self.temperature:
            logits *= self.scale / self.temperature
        return logits

    def grad_of_products(self, grad: Tensor, logits: Tensor) -> Tensor:
        """From the gradient of the tempered logits to that of `weight · h + bias`; overwrites `grad`."""
        if self.softcap is not None:
            tanh = logits * (self.temperature / self.softcap)
            grad *= 1 - tanh * tanh
        if self.scale != self.temperature:
            grad *= self.scale / self.temperature
        return grad


def _grad_of_logits(
    logits: Tensor,
    rows: slice,
    normalisers: Tensor,
    entropies: Tensor,
    grad_normalisers: Tensor | None,
    grad_entropies: Tensor | None,
) -> Tensor:
    """Through log Σ exp (its gradient is p) and the entropy H (its gradient is −p (log p + H)): [positions, vocabulary]."""
    logprobs = logits - normalisers[rows, None]
    grad = logprobs.exp()
    if grad_entropies is not None:
        weight = -grad_entropies[rows, None] * (logprobs + entropies[rows, None])
        return grad.mul_(weight if grad_normalisers is None else weight + grad_normalisers[rows, None])
    assert grad_normalisers is not None, "a backward pass needs a gradient of the log-probabilities or of the entropies"
    return grad.mul_(grad_normalisers[rows, None])


def _chunks(positions: int, vocabulary: int, position_of_token: Tensor) -> list[tuple[slice, slice]]:
    """Consecutive positions, and the tokens that they predict."""
    size = max(1, MAX_CHUNK_ELEMENTS // vocabulary)
    bounds = [*range(0, positions, size), positions]
    cuts: list[int] = torch.searchsorted(position_of_token, torch.tensor(bounds, device=position_of_token.device)).tolist()
    return [(slice(bounds[i], bounds[i + 1]), slice(cuts[i], cuts[i + 1])) for i in range(len(bounds) - 1)]
