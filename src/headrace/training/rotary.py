"""Attention layers with rotary positions, in fewer passes over memory than transformers takes."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from headrace.training.collation import RowLayout
from headrace.training.shared_prompt_attention import SharedPromptSequences, attend_to_shared_prompts, find_sequences

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS = {"q_norm", "k_norm"}


def use_rotary_layers(model: PreTrainedModel) -> None:
    """Compute shared prompts by `_forward` in every layer for which that gives the same; other layers stay as they are."""
    if getattr(model.config, "sliding_window", None) is not None:
        return
    for layer in model.modules():
        children = {name for name, _ in layer.named_children()}
        known = children == _PROJECTIONS or (children == _PROJECTIONS | _NORMS and _norms_heads(layer))
        if known and _computes_the_same(layer):
            layer.forward = MethodType(_forward, layer)


def _norms_heads(layer: Any) -> bool:
    """Whether each head is normalised, not all of them together."""
    return all(getattr(norm, "weight", torch.empty(0)).shape == (layer.head_dim,) for norm in (layer.q_norm, layer.k_norm))


def _forward(
    layer: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    *args: Any,
    sequences: SharedPromptSequences | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    if sequences is None:
        return type(layer).forward(layer, hidden_states, position_embeddings, *args, **kwargs)
    query, key, value = (
        projection(hidden_states)[0].unflatten(-1, (-1, layer.head_dim)) for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    if hasattr(layer, "q_norm"):
        query, key = layer.q_norm(query), layer.k_norm(key)
    cos, sin = (table[0, :, None] for table in position_embeddings)
    output = attend_to_shared_prompts(
        _Rotation.apply(query, cos, sin),
        _Rotation.apply(key, cos, sin),
        value,
        sequences=sequences,
        scaling=layer.scaling,
        window=None,
        softcap=None,
    )
    return layer.o_proj(output.flatten(1)[None]), None


class _Rotation(torch.autograd.Function):
    """Turns the pairs (x_i, x_{i + D/2}) of [tokens, heads, D] by their angles; cos and sin are [tokens, 1, D]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = inputs.dtype
        wide, half = inputs.to(cos.dtype), inputs.shape[-1] // 2
        turned = wide * cos
        turned[..., :half].addcmul_(wide[..., half:], sin[..., :half], value=-1)
        turned[..., half:].addcmul_(wide[..., :half], sin[..., half:])
        return turned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        half = grad.shape[-1] // 2
        turned = grad * cos
        turned[..., :half].addcmul_(grad[..., half:], sin[..., half:])
        turned[..., half:].addcmul_(grad[..., :half], sin[..., :half], value=-1)
        return turned.to(ctx.dtype), None, None


@torch.no_grad()
def _computes_the_same(layer: Any) -> bool:
    """Names tell little of what other people's layers compute, so they are tried."""
    tokens, size, device = 3, layer.head_dim, layer.q_proj.weight.device
    inputs = torch.linspace(-2, 3, tokens * layer.q_proj.in_features, device=device).sin().view(1, tokens, -1)
    angles = torch.linspace(0, 2, tokens * (size // 2), device=device).view(1, tokens, -1).repeat(1, 1, 2)
    positions = (angles.cos(), angles.sin())
    expected = type(layer).forward(layer, inputs, positions, attention_mask=None)[0]
    alone = find_sequences([RowLayout(start=0, prompt_length=tokens, completion_lengths=())], device)
    return torch.allclose(_forward(layer, inputs, positions, sequences=alone)[0], expected, rtol=1e-4, atol=1e-5)
