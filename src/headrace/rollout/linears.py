"""Linear layers for the few rows of a decode step, with what follows them fused in where the hardware can.

On a CPU with bfloat16 arithmetic, weights are kept in oneDNN's own blocked layout: the plain layout is reordered on every
call, which costs as much as the product itself.

A LoRA adapter is computed beside the layers that it belongs to: added to bfloat16 weights, most of it would be rounded away.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from headrace.rollout.model_weights import ModelWeights

_ADAPTER = "default"
"""peft's name of a model's only adapter."""


class PlainLinear(nn.Module):
    """One or several `nn.Linear` of the same input, their outputs side by side."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
        self.bias = _stacked_bias(linears)

    def load(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Take over the layers' new weights [out features, in features] and biases, of any floating type."""
        _copy_stacked(weights, self.weight)
        _copy_stacked(biases, self.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """From [..., in features] to [..., all out features]."""
        return F.linear(inputs, self.weight, self.bias)

    def silu(self, inputs: torch.Tensor) -> torch.Tensor:
        """SiLU of the outputs."""
        return F.silu(self(inputs))

    def times(self, inputs: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The outputs times a tensor of their shape."""
        return self(inputs) * factor

    def plus(self, inputs: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """The outputs plus a tensor of their shape."""
        return self(inputs) + summand


class PackedLinear(nn.Module):
    """The same in bfloat16 on a CPU; the weights exist in packed form only."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.bias = _stacked_bias(linears)
        weight = torch.cat([linear.weight.detach() for linear in linears])
        self._shape = weight.shape
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def load(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Take over the layers' new weights [out features, in features] and biases, of any floating type."""
        # Into the memory and layout that are there: finding the layout again takes longer than filling it.
        self._packed.copy_(_float32_or_bfloat16(weights).to_mkldnn(torch.bfloat16))
        _copy_stacked(biases, self.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """From [..., in features] to [..., all out features], both bfloat16."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "none", [], "")

    def silu(self, inputs: torch.Tensor) -> torch.Tensor:
        """SiLU of the outputs."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "swish", [], "")

    def times(self, inputs: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The outputs times a tensor of their shape."""
        return torch.ops.mkldnn._linear_pointwise.binary(inputs, factor, self._packed, self.bias, "mul")

    def plus(self, inputs: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """The outputs plus a tensor of their shape."""
        return torch.ops.mkldnn._linear_pointwise.binary(inputs, summand, self._packed, self.bias, "add")

    def extra_repr(self) -> str:
        """The shape, as `nn.Linear` shows it."""
        return f"in_features={self._shape[1]}, out_features={self._shape[0]}"


class AdaptedLinear(nn.Module):
    """The same for layers of which some have LoRA by peft: x · Wᵀ + x · Aᵀ · Bᵀ, with the scale in B.

    A is the layers' A below one another, B has their B along its diagonal: the outputs of two small products are a term of the large one.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        linears: list[nn.Linear] = [layer.base_layer if is_adapted(layer) else layer for layer in layers]  # type: ignore[misc]
        self._base: PlainLinear | PackedLinear = stack_linears(linears)  # type: ignore[assignment]
        self._blocks = list(_blocks(layers))
        num_outputs, rank = sum(linear.out_features for linear in linears), self._blocks[-1].columns.stop
        self.down = nn.Parameter(linears[0].weight.new_empty(rank, linears[0].in_features), requires_grad=False)
        self.up = nn.Parameter(linears[0].weight.new_zeros(num_outputs, rank), requires_grad=False)
        adapted: list[Any] = [layer for layer in layers if is_adapted(layer)]
        self.load([layer.lora_A[_ADAPTER].weight for layer in adapted], [layer.lora_B[_ADAPTER].weight for layer in adapted])

    def load(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Take over A [rank, in features] and B [out features, rank] of each layer that has them."""
        for block, down, up in zip(self._blocks, weights, biases, strict=True):
            self.down[block.columns].copy_(down.detach())
            self.up[block.rows, block.columns].copy_(up.detach() * block.scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """From [..., in features] to [..., all out features]."""
        return self._base.plus(inputs, F.linear(F.linear(inputs, self.down), self.up))

    def silu(self, inputs: torch.Tensor) -> torch.Tensor:
        """SiLU of the outputs."""
        return F.silu(self(inputs), inplace=True)

    def times(self, inputs: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The outputs times a tensor of their shape."""
        return self(inputs).mul_(factor)

    def plus(self, inputs: torch.Tensor, summand: torch.Tensor) -> torch.Tensor:
        """The outputs plus a tensor of their shape."""
        return self(inputs).add_(summand)


EngineLinear = PlainLinear | PackedLinear | AdaptedLinear


def stack_linears(linears: Sequence[nn.Module]) -> EngineLinear:
    """One layer for several of the same input, packed where that is faster.

    Args:
        linears: `nn.Linear`, or peft's layers around them.
    """
    if any(map(is_adapted, linears)):
        return AdaptedLinear(linears)
    plain: list[nn.Linear] = list(linears)  # type: ignore[arg-type]
    return PackedLinear(plain) if all(map(can_pack, plain)) else PlainLinear(plain)


def is_adapted(layer: nn.Module) -> bool:
    """Whether it is a linear layer with LoRA by peft."""
    return hasattr(layer, "lora_A") and isinstance(getattr(layer, "base_layer", None), nn.Linear)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Where one layer's B stands in the matrix of all, and its scale."""

    rows: slice
    columns: slice
    scale: float


def _blocks(layers: Sequence[Any]) -> Iterator[_Block]:
    row = column = 0
    for layer in layers:
        rows, row = slice(row, row + layer.out_features), row + layer.out_features
        if is_adapted(layer):
            columns, column = slice(column, column + layer.r[_ADAPTER]), column + layer.r[_ADAPTER]
            yield _Block(rows=rows, columns=columns, scale=layer.scaling[_ADAPTER])


def pack_linears(model: nn.Module, weights: ModelWeights) -> None:
    """Replace every `nn.Linear` that has an adapter or can be packed, the output head included, tied or not."""
    # Those with an adapter first, as they have linear layers of their own in them.
    _replace(model, weights, is_adapted)
    _replace(model, weights, lambda layer: type(layer) is nn.Linear and can_pack(layer))


def _replace(model: nn.Module, weights: ModelWeights, chosen: Callable[[nn.Module], bool]) -> None:
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if chosen(child):
                replacement = stack_linears([child])
                setattr(parent, name, replacement)
                weights.redirect(replacement, [f"{parent_name}.{name}".removeprefix(".")])


def can_pack(linear: nn.Linear) -> bool:
    """Whether the layer is in bfloat16 on a CPU that computes in it."""
    return linear.weight.dtype == torch.bfloat16 and linear.weight.device.type == "cpu" and packs_bfloat16()


def packs_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this CPU."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _stacked_bias(linears: Sequence[nn.Linear]) -> torch.Tensor | None:
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return torch.cat(biases) if biases else None


def _float32_or_bfloat16(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The weights below one another, in a type that oneDNN converts from."""
    weight = weights[0].detach()
    if len(weights) == 1 and weight.dtype in (torch.float32, torch.bfloat16):
        return weight
    whole = weight.new_empty(sum(map(len, weights)), weight.shape[1], dtype=torch.bfloat16)
    _copy_stacked(weights, whole)
    return whole


def _copy_stacked(parts: Sequence[torch.Tensor], whole: torch.Tensor | None) -> None:
    if whole is not None:
        for part, stretch in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            stretch.copy_(part.detach())
