"""The layers of Llama and its relatives, in as few operations as they take.

At a decode step's few rows, the calls themselves cost as much as what they compute. Here a layer is:

    q, k, v = rotate(W_qkv · norm(x))          one product, and the cache is written by one copy
    x       = W_o · attention + x               the sum is part of the product
    x       = W_down · (silu(W_gate · norm(x)) ⊙ W_up · norm(x)) + x

Models whose layers are built otherwise run on transformers' own code (`decoder.py`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from headrace.rollout.attention import AttentionKind, attend_step
from headrace.rollout.linears import stack_linears
from headrace.rollout.model_weights import ModelWeights
from headrace.rollout.place_cache import PlaceCache
from headrace.rollout.step import Step

FUSED_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures for which the tests show that the fused layers compute what transformers' do."""


def can_fuse(model: PreTrainedModel) -> bool:
    """Whether the model's layers are those of `FusedLayers`."""
    return model.config.model_type in FUSED_MODEL_TYPES and model.config.hidden_act == "silu"


class FusedLayers:
    """From token ids to the last layer's hidden states. The model's own linear layers are taken apart."""

    def __init__(self, model: PreTrainedModel, weights: ModelWeights) -> None:
        base: Any = model.base_model
        prefix = model.base_model_prefix
        self._embedding: nn.Module = base.embed_tokens
        self._rotary: nn.Module = base.rotary_emb
        self._norm = RMSNorm(base.norm)
        self._layers = [FusedLayer(layer, number, f"{prefix}.layers.{number}", weights) for number, layer in enumerate(base.layers)]

    def __call__(self, step: Step, cache: PlaceCache) -> torch.Tensor:
        """Hidden states behind the last norm, [tokens, hidden size]; writes the step's keys and values to the cache."""
        hidden = self._embedding(step.token_ids)
        rotation = Rotation(*self._rotary(hidden, step.positions[None]), num_heads=self._layers[0].num_rotated_heads)
        for layer in self._layers:
            hidden = layer(hidden, rotation, step, cache)
        return self._norm(hidden)


class RMSNorm:
    """A model's norm, by one call."""

    def __init__(self, norm: Any) -> None:
        self._weight: torch.Tensor = norm.weight
        self._epsilon: float = norm.variance_epsilon

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Over the last dimension."""
        return F.rms_norm(inputs, self._weight.shape, self._weight, self._epsilon)


class Rotation:
    """Rotary position embedding of a step's tokens: x · cos + swap_halves(x) · (-sin, sin)."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, *, num_heads: int) -> None:
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        self._half = half
        # Repeated for every head: a broadcast product takes several times as long.
        self._cos, self._sin = (angles[0, :, None].expand(-1, num_heads, -1).contiguous() for angles in (cos, signed))

    def apply_(self, heads: torch.Tensor) -> None:
        """Rotate queries and keys [tokens, heads, head size] in place."""
        torch.addcmul(heads * self._cos, heads.roll(self._half, dims=-1), self._sin, out=heads)


class FusedLayer:
    """One layer: attention, then the gated feed-forward part, each behind its norm."""

    def __init__(self, layer: Any, number: int, name: str, weights: ModelWeights) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._number = number
        self._attention_norm, self._mlp_norm = RMSNorm(layer.input_layernorm), RMSNorm(layer.post_attention_layernorm)
        self._head_norms = [RMSNorm(attention.q_norm), RMSNorm(attention.k_norm)] if hasattr(attention, "q_norm") else []
        self._head_size: int = attention.head_dim
        self._num_query_heads = attention.q_proj.out_features // self._head_size
        self._num_key_heads = attention.k_proj.out_features // self._head_size
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self._kind = AttentionKind(scaling=attention.scaling, sliding_window=window)
        self.num_rotated_heads = self._num_query_heads + self._num_key_heads
        self._qkv = _take(weights, attention, f"{name}.self_attn", "q_proj", "k_proj", "v_proj")
        self._output = _take(weights, attention, f"{name}.self_attn", "o_proj")
        self._gate = _take(weights, mlp, f"{name}.mlp", "gate_proj")
        self._up = _take(weights, mlp, f"{name}.mlp", "up_proj")
        self._down = _take(weights, mlp, f"{name}.mlp", "down_proj")

    def __call__(self, hidden: torch.Tensor, rotation: Rotation, step: Step, cache: PlaceCache) -> torch.Tensor:
        """[tokens, hidden size] to the like."""
        heads = self._qkv(self._attention_norm(hidden)).unflatten(-1, (-1, self._head_size))
        queries, keys, _ = heads.split_with_sizes([self._num_query_heads, self._num_key_heads, self._num_key_heads], dim=1)
        for norm, part in zip(self._head_norms, (queries, keys), strict=False):
            part.copy_(norm(part))
        rotation.apply_(heads[:, : self.num_rotated_heads])
        places, prompts = cache.write(self._number, heads[:, self._num_query_heads :].unflatten(1, (2, -1)))
        mixed = attend_step(queries, places, prompts, step, self._kind)
        hidden = self._output.plus(mixed.flatten(1), hidden)
        normed = self._mlp_norm(hidden)
        return self._down.plus(self._up.times(normed, self._gate.silu(normed)), hidden)


def _take(weights: ModelWeights, parent: nn.Module, name: str, *children: str) -> Any:
    """One layer for the children of a module, which it loses."""
    stacked = stack_linears([parent.get_submodule(child) for child in children])  # type: ignore[arg-type]
    weights.redirect(stacked, [f"{name}.{child}" for child in children])
    for child in children:
        delattr(parent, child)
    return stacked
