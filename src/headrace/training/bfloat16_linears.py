"""Linear layers for bfloat16 autocast on a CPU, plain and with LoRA: products, and the gradients behind them, written out.

Gradients of weights are added up in float32 in place; those of frozen weights are not computed.
"""

from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from headrace.training.adapter import ADAPTER
from headrace.training.gradients import CastWeight, add_to_gradient


class LinearProduct(Protocol):
    """What a linear layer computes, in bfloat16."""

    def product(self, inputs: Tensor) -> Tensor:
        """From [rows, in features] to [rows, out features]."""
        ...

    def differentiate(self, inputs: Tensor, grad: Tensor, summand: Tensor | None = None) -> Tensor:
        """Add to the weights' gradients.

        Args:
            inputs: [rows, in features] that the product was made of.
            grad: [rows, out features] gradient of the product.
            summand: [rows, in features].

        Returns:
            The inputs' gradient, plus the summand.
        """
        ...


class Bfloat16Linear(nn.Linear):
    """Computes what the `nn.Linear` it replaces computes under autocast; the two share their weights."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._cast = CastWeight(layer.weight, torch.bfloat16)

    def forward(self, input: Tensor) -> Tensor:
        """From [..., in features] to [..., out features]."""
        if not torch.is_autocast_enabled("cpu"):
            return linear(input, self.weight, self.bias)
        return _Linear.apply(input, self.weight, self)

    def cast_weight(self) -> Tensor:
        """[out features, in features] bfloat16."""
        return self._cast.get()

    def cast_bias(self) -> Tensor | None:
        """[out features] bfloat16."""
        return None if self.bias is None else self.bias.detach().to(torch.bfloat16)

    def product(self, inputs: Tensor) -> Tensor:
        """See `LinearProduct`."""
        return linear(inputs, self.cast_weight(), self.cast_bias())

    def differentiate(self, inputs: Tensor, grad: Tensor, summand: Tensor | None = None) -> Tensor:
        """See `LinearProduct`."""
        if self.weight.requires_grad:
            add_to_gradient(self.weight, grad.T @ inputs)
        if self.bias is not None and self.bias.requires_grad:
            add_to_gradient(self.bias, grad.sum(dim=0, dtype=self.bias.dtype))
        weight = self.cast_weight()
        return grad @ weight if summand is None else torch.addmm(summand, grad, weight)


class AdaptedLinear:
    """Computes what a LoRA layer of peft computes under autocast: x · Wᵀ + s · x · Aᵀ · Bᵀ, rounded once.

    Args:
        layer: peft's layer, with one adapter and no dropout.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._base: Bfloat16Linear = layer.base_layer
        self._down, self._up = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        self._cast_down, self._cast_up = CastWeight(self._down, torch.bfloat16), CastWeight(self._up, torch.bfloat16)
        self._scale: float = layer.scaling[ADAPTER]

    @property
    def anchor(self) -> nn.Parameter:
        """What makes autograd come back to the layer."""
        return self._up

    def product(self, inputs: Tensor) -> Tensor:
        """See `LinearProduct`."""
        if self._layer.disable_adapters:
            return self._base.product(inputs)
        # The small part first: added to a product that is already rounded, it could be lost.
        adapted = linear(self._narrow(inputs), self._cast_up.get(), self._base.cast_bias())
        return torch.addmm(adapted, inputs, self._base.cast_weight().T)

    def differentiate(self, inputs: Tensor, grad: Tensor, summand: Tensor | None = None) -> Tensor:
        """See `LinearProduct`."""
        add_to_gradient(self._up, grad.T @ self._narrow(inputs))
        narrow_grad = (grad @ self._cast_up.get()).mul_(self._scale)
        add_to_gradient(self._down, narrow_grad.T @ inputs)
        down = self._cast_down.get()
        summand = narrow_grad @ down if summand is None else torch.addmm(summand, narrow_grad, down)
        return self._base.differentiate(inputs, grad, summand)

    def _narrow(self, inputs: Tensor) -> Tensor:
        """Scaled x · Aᵀ, [rows, rank]."""
        return linear(inputs, self._cast_down.get()).mul_(self._scale)


def is_adapted(layer: nn.Module) -> bool:
    """Whether it is a linear layer with LoRA by peft."""
    return hasattr(layer, "lora_A") and isinstance(getattr(layer, "base_layer", None), nn.Linear)


def use_bfloat16_product(layer: Any) -> None:
    """Have a LoRA layer of peft, which stays in its place, compute by `AdaptedLinear` under autocast."""
    if not isinstance(layer.base_layer, Bfloat16Linear):
        layer.base_layer = Bfloat16Linear(layer.base_layer)
        layer.bfloat16_product = AdaptedLinear(layer)
        layer.forward = MethodType(_forward_adapted, layer)


def product_of(layer: Any) -> LinearProduct:
    """What a layer computes."""
    return layer.bfloat16_product if is_adapted(layer) else layer


def flat(tensor: Tensor) -> Tensor:
    """[..., features] to [rows, features]."""
    return tensor.reshape(-1, tensor.shape[-1])


def _forward_adapted(layer: Any, inputs: Tensor) -> Tensor:
    if not torch.is_autocast_enabled("cpu"):
        return type(layer).forward(layer, inputs)
    return _Linear.apply(inputs, layer.bfloat16_product.anchor, layer.bfloat16_product)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, layer: LinearProduct) -> Tensor:
        """The anchor is there for autograd, which would not come back if nothing here needed a gradient."""
        cast_inputs = inputs.to(torch.bfloat16)
        ctx.save_for_backward(cast_inputs)
        ctx.layer, ctx.dtype = layer, inputs.dtype
        return layer.product(flat(cast_inputs)).view(*inputs.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (inputs,) = ctx.saved_tensors
        return ctx.layer.differentiate(flat(inputs), flat(grad)).view(inputs.shape).to(ctx.dtype), None, None
