"""The linear products of a model alone, with packed weights: what no decoder of the same precision passes by much."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.rollout.linears import packs_bfloat16


def product_shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """(in, out) of each product of a forward pass; layers that read the same tensor count as one, as wide as all of them."""
    shapes: dict[int, list[int]] = {}
    inputs: list[Tensor] = []  # Kept, so that no two of them get the same id.

    def note(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs.append(arguments[0])
        of_input = shapes.setdefault(id(arguments[0]), [layer.in_features, 0])
        of_input[1] += layer.out_features

    hooks = [layer.register_forward_pre_hook(note) for layer in model.modules() if isinstance(layer, nn.Linear)]
    with torch.inference_mode():
        model(input_ids=torch.tensor([[0]], device=model.device))
    for hook in hooks:
        hook.remove()
    return [(wide, out) for wide, out in shapes.values()]


def linear_products(model: PreTrainedModel) -> Callable[[int], None]:
    """A function that computes one decode step's products for so many sequences.

    On a CPU whose oneDNN computes in bfloat16, weights are in its blocked layout; otherwise they are plain.
    """
    dtype, device = model.dtype, model.device
    packs = dtype == torch.bfloat16 and device.type == "cpu" and packs_bfloat16()
    shapes = product_shapes(model)
    weights = [torch.randn(out, wide, dtype=dtype, device=device) * 0.02 for wide, out in shapes]
    if packs:
        weights = [torch.ops.mkldnn._reorder_linear_weight(weight, None) for weight in weights]

    def multiply(inputs: Tensor, weight: Tensor) -> Tensor:
        if packs:
            return torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")
        return nn.functional.linear(inputs, weight)

    @torch.inference_mode()
    def step(sequences: int) -> None:
        inputs = {wide: torch.ones(sequences, wide, dtype=dtype, device=device) for wide, _ in shapes}
        for (wide, _), weight in zip(shapes, weights, strict=True):
            multiply(inputs[wide], weight)

    return step


def seconds_of_steps(step: Callable[[int], None], sequences: int, steps: int) -> float:
    """Seconds of so many decode steps."""
    start = time.perf_counter()
    for _ in range(steps):
        step(sequences)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
