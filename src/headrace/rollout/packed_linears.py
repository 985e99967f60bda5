"""bfloat16 linear layers on a CPU, with weights in oneDNN's own blocked layout.

The plain layout is reordered on every call, which costs as much as the product itself for the few rows of a decode step.
"""

import torch
from torch import nn


class PackedLinear(nn.Module):
    """Computes what the `nn.Linear` it replaces computes; the weight exists in packed form only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self._shape = linear.weight.shape
        self.pack(linear.weight)

    def pack(self, weight: torch.Tensor) -> None:
        """Take over a weight [out features, in features] of any floating type."""
        plain = weight.detach().to(torch.bfloat16).contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(plain, None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """From [..., in features] to [..., out features], both bfloat16."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "none", [], "")

    def extra_repr(self) -> str:
        """The shape, as `nn.Linear` shows it."""
        return f"in_features={self._shape[1]}, out_features={self._shape[0]}"


def packs_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this CPU."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(model: nn.Module) -> None:
    """Replace every bfloat16 `nn.Linear` on a CPU that `packs_bfloat16`, the output head included, tied or not."""
    if not packs_bfloat16():
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(module, name, PackedLinear(child))
