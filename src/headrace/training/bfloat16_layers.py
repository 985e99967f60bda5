"""A model's layers for bfloat16 autocast on a CPU, with fewer passes over memory than autograd makes of them.

Weights are cast once a version instead of in every pass, their gradients are added up in float32 in place, and the chains of small
operations in normalisation and gated layers are one function each, which keeps less for its backward pass. Without autocast the
layers compute what those that they replace compute.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, silu
from transformers import PreTrainedModel

from headrace.training.bfloat16_linears import Bfloat16Linear, LinearProduct, flat, is_adapted, product_of, use_bfloat16_product
from headrace.training.gradients import add_to_gradient, gradient_rows


def use_bfloat16_layers(model: PreTrainedModel) -> None:
    """Replace the layers that are known here; all others, and the output head, stay. Names of weights do not change."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            replacement = None if child is head else _replacement(child)
            if replacement is not None:
                setattr(module, name, replacement)


def _replacement(layer: nn.Module) -> nn.Module | None:
    if type(layer) is nn.Linear or is_adapted(layer):
        return _bfloat16_linear(layer)
    if type(layer) is nn.Embedding and layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse:
        return InPlaceEmbedding(layer)
    if type(layer).__name__.endswith("RMSNorm"):
        return _rms_norm_like(layer)
    if {name for name, _ in layer.named_children()} == {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return _gated_layer_like(layer)
    return None


def _bfloat16_linear(layer: Any) -> nn.Module:
    """A layer in the place of an `nn.Linear`; one with LoRA stays, and computes by another way."""
    if not is_adapted(layer):
        return Bfloat16Linear(layer)
    use_bfloat16_product(layer)
    return layer


class InPlaceEmbedding(nn.Embedding):
    """Adds its gradient to the rows that were looked up, instead of to the whole table."""

    def __init__(self, layer: nn.Embedding) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim, self.padding_idx = layer.num_embeddings, layer.embedding_dim, layer.padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False
        self.weight = layer.weight

    def forward(self, input: Tensor) -> Tensor:
        """From token ids [...] to [..., hidden]."""
        return _Embedding.apply(input, self.weight, self.padding_idx)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token_ids: Tensor, weight: Tensor, padding_id: int | None) -> Tensor:
        ctx.save_for_backward(token_ids)
        ctx.weight, ctx.padding_id = weight, padding_id
        return embedding(token_ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (token_ids,) = ctx.saved_tensors
        flat_ids, flat_grad = token_ids.flatten(), flat(grad)
        if ctx.padding_id is not None:
            # As in nn.Embedding: the padding token's row learns nothing here.
            flat_grad = flat_grad * (flat_ids != ctx.padding_id)[:, None]
        gradient_rows(ctx.weight).index_add_(0, flat_ids, flat_grad)
        return None, None, None


class RMSNorm(nn.Module):
    """x / √(mean(x²) + epsilon) · (offset + weight), computed in float32; under autocast the result has its type.

    Args:
        weight: [features].
        epsilon: Added to the mean square.
        offset: 0, or 1 where the weight is a deviation from 1, as in Gemma.
    """

    def __init__(self, weight: nn.Parameter, *, epsilon: float, offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon
        self.offset = offset

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., features] in and out."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else inputs.dtype
        return _RMSNorm.apply(inputs, self.weight, self.epsilon, self.offset, dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float, offset: float, dtype: torch.dtype) -> Tensor:
        wide = inputs.float()
        norms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scales = norms.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(inputs, scales)
        ctx.weight, ctx.offset = weight, offset
        return (wide * scales).mul_(weight + offset).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, scales = ctx.saved_tensors
        factor, features = ctx.weight + ctx.offset, inputs.shape[-1]
        normed, grad = flat(inputs * scales), flat(grad).float()
        product = grad * normed
        if ctx.weight.requires_grad:
            add_to_gradient(ctx.weight, product.sum(dim=0))
        along = (product @ factor).div_(features).unsqueeze(-1)
        grad_inputs = torch.mul(grad, factor).addcmul_(normed, along, value=-1).view(inputs.shape).mul_(scales)
        return grad_inputs.to(inputs.dtype), None, None, None, None


class GatedLayer(nn.Module):
    """down(silu(gate(x)) · up(x)): keeps x, gate(x) and up(x) for the backward pass, and computes the rest again."""

    def __init__(self, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = map(_bfloat16_linear, (gate_proj, up_proj, down_proj))
        self._products = tuple(map(product_of, (self.gate_proj, self.up_proj, self.down_proj)))

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., hidden] in and out."""
        if not torch.is_autocast_enabled("cpu"):
            return self.down_proj(silu(self.gate_proj(inputs)) * self.up_proj(inputs))
        # For autograd, which would not come back if nothing here needed a gradient.
        anchor = next((parameter for parameter in self.parameters() if parameter.requires_grad), None)
        return _GatedLayer.apply(inputs, anchor, *self._products)


class _GatedLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, anchor: Tensor | None, gate_proj: LinearProduct, up_proj: LinearProduct, down_proj: LinearProduct
    ) -> Tensor:
        cast_inputs = flat(inputs).to(torch.bfloat16)
        gate, up = gate_proj.product(cast_inputs), up_proj.product(cast_inputs)
        ctx.save_for_backward(cast_inputs, gate, up)
        ctx.layers, ctx.dtype = (gate_proj, up_proj, down_proj), inputs.dtype
        return down_proj.product(silu(gate).mul_(up)).view(inputs.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, gate, up = ctx.saved_tensors
        gate_proj, up_proj, down_proj = ctx.layers
        activated = silu(gate)
        grad_product = down_proj.differentiate(activated * up, flat(grad))
        grad_up = activated.mul_(grad_product)
        grad_gate = torch.ops.aten.silu_backward(grad_product.mul_(up), gate)
        grad_inputs = up_proj.differentiate(inputs, grad_up, gate_proj.differentiate(inputs, grad_gate))
        return grad_inputs.view(grad.shape).to(ctx.dtype), None, None, None, None


@torch.no_grad()
def _rms_norm_like(layer: nn.Module) -> RMSNorm | None:
    weight = getattr(layer, "weight", None)
    epsilon = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if not isinstance(weight, nn.Parameter) or weight.ndim != 1 or not isinstance(epsilon, float):
        return None
    for offset in (0.0, 1.0):
        candidate = RMSNorm(weight, epsilon=epsilon, offset=offset)
        if _compute_the_same(layer, candidate, features=len(weight)):
            return candidate
    return None


@torch.no_grad()
def _gated_layer_like(layer: nn.Module) -> GatedLayer | None:
    projections = [getattr(layer, name) for name in ("gate_proj", "up_proj", "down_proj")]
    if any(not _is_linear(projection) or projection.bias is not None for projection in projections):
        return None
    candidate = GatedLayer(*projections)
    return candidate if _compute_the_same(layer, candidate, features=projections[0].in_features) else None


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or is_adapted(layer)


def _compute_the_same(layer: nn.Module, candidate: nn.Module, *, features: int) -> bool:
    """Names tell little of what other people's layers compute, so they are tried."""
    inputs = torch.linspace(-2, 3, 3 * features).sin().view(3, features)
    return torch.allclose(layer(inputs), candidate(inputs), rtol=1e-4, atol=1e-5)
