"""Gradients of a model's last layers that are added up beside the ones that it learns from."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.errors import ModelError

K = TypeVar("K", bound=Hashable)


class GradientSums(Generic[K]):
    """One gradient of some weights for each key; the `.grad` of all that learns stays as it is.

    Args:
        weights: Whose gradients are added up.
        others: Everything else that learns.
    """

    def __init__(self, weights: Sequence[nn.Parameter], *, others: Sequence[nn.Parameter]) -> None:
        self._weights = tuple(weights)
        self._others = tuple(others)
        self._sums: dict[K, list[Tensor | None]] = {}

    def add(self, key: K, outputs: Tensor, grad: Tensor) -> None:
        """Add the gradient of Σ grad · outputs to a key's. The graph behind `outputs` can be used again.

        Args:
            key: Whose sum.
            outputs: Computed with the weights; what is computed before them is not gone through.
            grad: Of the shape of `outputs`.
        """
        sums = self._sums.get(key, [None] * len(self._weights))
        # Hand-written backward passes add to `.grad` of every weight on their way, whatever autograd is asked for.
        with _replaced_gradients((*self._weights, *self._others), [*sums, *[None] * len(self._others)]):
            torch.autograd.backward(outputs, grad, inputs=self._weights, retain_graph=True)
            self._sums[key] = [weight.grad for weight in self._weights]

    def products(self) -> dict[tuple[K, K], float]:
        """Scalar product of every two sums, and of each with itself."""
        keys = list(self._sums)
        total = torch.zeros(len(keys), len(keys), dtype=torch.float64)
        for index, weight in enumerate(self._weights if keys else ()):
            gradients = [self._sums[key][index] for key in keys]
            stacked = torch.stack([torch.zeros_like(weight) if each is None else each for each in gradients]).flatten(1)
            total += (stacked @ stacked.T).to("cpu", torch.float64)
        return {(first, second): float(total[i, j]) for i, first in enumerate(keys) for j, second in enumerate(keys)}


@contextmanager
def _replaced_gradients(weights: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> Iterator[None]:
    own = [weight.grad for weight in weights]
    try:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        yield
    finally:
        for weight, gradient in zip(weights, own, strict=True):
            weight.grad = gradient


def last_weights(model: PreTrainedModel, num_layers: int) -> list[nn.Parameter]:
    """What learns in the last decoder layers: their weights, or an adapter's in them. More layers than there are is all of them.

    Raises:
        ModelError: The layers cannot be found, or nothing in them learns.
    """
    count = model.config.get_text_config().num_hidden_layers
    stacks = [module for module in model.base_model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    weights = [weight for layer in stacks[0][-num_layers:] for weight in layer.parameters() if weight.requires_grad] if stacks else []
    if not weights:
        reason = "none of their weights learns" if stacks else "there is no list of them"
        raise ModelError(
            f"the last {num_layers} of {count} layers of {model.config.model_type} have no gradients to compare: {reason}; raise "
            "shadow.num_layers, or leave [shadow] out"
        )
    return weights
