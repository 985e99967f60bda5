"""The layers of Llama and its relatives, in as few operations as they take.

At a decode step's few rows, the calls themselves cost as much as what they compute. Here a layer is:

    q, k, v = rotate(W_qkv · norm(x))          one product, and the cache is written by one copy
    x       = W_o · attention + x               the sum is part of the product
    x       = W_down · (silu(W_gate · norm(x)) ⊙ W_up · norm(x)) + x

Models whose layers are built otherwise run on transformers' own code (`decoder.py`).
"""

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from headrace.rollout.attention import AttentionKind, attend_segments, attend_step
from headrace.rollout.kernels import Kernels, load_kernels
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
        kernels = _kernels_for(model)
        self._norm = RMSNorm(base.norm, kernels)
        self._layers = [
            FusedLayer(layer, number, f"{prefix}.layers.{number}", weights, kernels) for number, layer in enumerate(base.layers)
        ]

    def __call__(self, step: Step, cache: PlaceCache) -> torch.Tensor:
        """Hidden states behind the last norm, [tokens, hidden size]; writes the step's keys and values to the cache."""
        hidden = self._embedding(step.token_ids)
        rotation = Rotation(*self._rotary(hidden, step.positions[None]), num_heads=self._layers[0].num_rotated_heads)
        for layer in self._layers:
            hidden = layer(hidden, rotation, step, cache)
        return self._norm(hidden)


def _kernels_for(model: PreTrainedModel) -> Kernels | None:
    if model.dtype != torch.bfloat16 or model.device.type != "cpu":
        return None
    base: Any = model.base_model
    attention = base.layers[0].self_attn
    siblings = attention.q_proj.out_features // attention.k_proj.out_features
    return load_kernels(head_size=attention.head_dim, siblings=siblings)


class RMSNorm:
    """A model's norm, by one call."""

    def __init__(self, norm: Any, kernels: Kernels | None) -> None:
        self._weight: torch.Tensor = norm.weight
        self._epsilon: float = norm.variance_epsilon
        self._kernels = kernels

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Over the last dimension."""
        if self._kernels is not None and inputs.ndim == 2:
            return self._kernels.rms_norm(inputs, self._weight, self._epsilon)
        return F.rms_norm(inputs, self._weight.shape, self._weight, self._epsilon)


class Rotation:
    """Rotary position embedding of a step's tokens: x · cos + swap_halves(x) · (-sin, sin)."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, *, num_heads: int) -> None:
        self.cos, self.sin = cos[0].contiguous(), sin[0].contiguous()
        """[tokens, head size]."""
        self._num_heads = num_heads

    def apply_(self, heads: torch.Tensor) -> None:
        """Rotate queries and keys [tokens, heads, head size] in place."""
        cos, sin = self._of_heads
        torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin, out=heads)

    @cached_property
    def _of_heads(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Repeated for every head, as a broadcast product takes several times as long; the first half of the sines is negative."""
        half = self.sin.shape[-1] // 2
        signed = torch.cat((-self.sin[:, :half], self.sin[:, half:]), dim=-1)
        cos, sin = (angles[:, None].expand(-1, self._num_heads, -1).contiguous() for angles in (self.cos, signed))
        return cos, sin


class FusedLayer:
    """One layer: attention, then the gated feed-forward part, each behind its norm."""

    def __init__(self, layer: Any, number: int, name: str, weights: ModelWeights, kernels: Kernels | None) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._number = number
        self._head_size: int = attention.head_dim
        self._num_query_heads = attention.q_proj.out_features // self._head_size
        self._num_key_heads = attention.k_proj.out_features // self._head_size
        self.num_rotated_heads: int = self._num_query_heads + self._num_key_heads
        self._kernels = kernels
        self._attention_norm, self._mlp_norm = (RMSNorm(norm, kernels) for norm in (layer.input_layernorm, layer.post_attention_layernorm))
        head_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else ()
        self._head_norms = [RMSNorm(norm, None) for norm in head_norms]
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self._scaling: float = attention.scaling
        self._kind = AttentionKind(scaling=self._scaling, sliding_window=window)
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
        mixed = (self._mix if self._kernels is None else self._mix_by_kernels)(heads, rotation, step, cache)
        hidden = self._output.plus(mixed.flatten(1), hidden)
        normed = self._mlp_norm(hidden)
        return self._down.plus(self._up.times(normed, self._gate.silu(normed)), hidden)

    def _mix(self, heads: torch.Tensor, rotation: Rotation, step: Step, cache: PlaceCache) -> torch.Tensor:
        """Write the keys and values of [tokens, all heads, head size] to the cache; returns what the queries make of them."""
        rotation.apply_(heads[:, : self.num_rotated_heads])
        places, prompts = cache.write(self._number, self._keys_values(heads))
        return attend_step(heads[:, : self._num_query_heads], places, prompts, step, self._kind)

    def _mix_by_kernels(self, heads: torch.Tensor, rotation: Rotation, step: Step, cache: PlaceCache) -> torch.Tensor:
        assert self._kernels is not None
        stored, queries = cache.layer(self._number, self._keys_values(heads)), heads[:, : self._num_query_heads]
        self._kernels.rotate_and_write(heads, rotation.cos, rotation.sin, stored, cache.rows)
        spans = cache.spans(step, self._kind.sliding_window)
        decoded = self._kernels.attend(queries[: step.num_decoded], stored, spans, self._scaling)
        return torch.cat([decoded, *attend_segments(queries, *cache.cells(stored), step, self._kind)]) if step.segments else decoded

    def _keys_values(self, heads: torch.Tensor) -> torch.Tensor:
        return heads[:, self._num_query_heads :].unflatten(1, (2, -1))


def _take(weights: ModelWeights, parent: nn.Module, name: str, *children: str) -> Any:
    """One layer for the children of a module, which it loses."""
    stacked = stack_linears([parent.get_submodule(child) for child in children])  # type: ignore[arg-type]
    weights.redirect(stacked, [f"{name}.{child}" for child in children])
    for child in children:
        delattr(parent, child)
    return stacked
