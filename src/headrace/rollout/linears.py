"""Linear layers for the few rows of a decode step, with what follows them fused in where the hardware can.

On a CPU with bfloat16 arithmetic, weights are kept in oneDNN's own blocked layout: the plain layout is reordered on every
call, which costs as much as the product itself.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from headrace.rollout.model_weights import ModelWeights


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
        self._pack([linear.weight for linear in linears])

    def load(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Take over the layers' new weights [out features, in features] and biases, of any floating type."""
        self._pack(weights)
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

    def _pack(self, weights: Sequence[torch.Tensor]) -> None:
        self._shape = torch.Size((sum(len(weight) for weight in weights), weights[0].shape[1]))
        plain = weights[0].new_empty(self._shape, dtype=torch.bfloat16)
        _copy_stacked(weights, plain)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain, None)


EngineLinear = PlainLinear | PackedLinear


def stack_linears(linears: Sequence[nn.Linear]) -> EngineLinear:
    """One layer for several of the same input, packed where that is faster."""
    return PackedLinear(linears) if all(map(can_pack, linears)) else PlainLinear(linears)


def pack_linears(model: nn.Module, weights: ModelWeights) -> None:
    """Replace every `nn.Linear` that can be packed, the output head included, tied or not."""
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and can_pack(child):
                packed = PackedLinear([child])
                setattr(parent, name, packed)
                weights.redirect(packed, [f"{parent_name}.{name}".removeprefix(".")])


def can_pack(linear: nn.Linear) -> bool:
    """Whether the layer is in bfloat16 on a CPU that computes in it."""
    return linear.weight.dtype == torch.bfloat16 and linear.weight.device.type == "cpu" and packs_bfloat16()


def packs_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this CPU."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _stacked_bias(linears: Sequence[nn.Linear]) -> torch.Tensor | None:
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return torch.cat(biases) if biases else None


def _copy_stacked(parts: Sequence[torch.Tensor], whole: torch.Tensor | None) -> None:
    if whole is not None:
        for part, stretch in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            stretch.copy_(part.detach())
