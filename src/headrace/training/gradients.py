"""Where hand-written backward passes put a weight's gradient, and the cast weights that they multiply with."""

from typing import Any

import torch
from torch import Tensor


def add_to_gradient(weight: Tensor, gradient: Tensor) -> None:
    """Add to `weight.grad`, whatever the type of the sum's second part: one pass over the weight.

    A frozen weight gets none. Handed to autograd instead, a bfloat16 product would be copied to float32 first and added in another pass.
    """
    if not weight.requires_grad:
        return
    if weight.grad is None:
        weight.grad = gradient.to(weight.dtype)
    else:
        weight.grad.add_(gradient)


def gradient_rows(weight: Tensor) -> Tensor:
    """`weight.grad`, made of zeros if there was none: to add to some of its rows."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


class CastWeight:
    """A weight in the type that products are computed in; cast again when the weight has changed, not in every pass."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self._weight = weight
        self._dtype = dtype
        self._cast: Tensor | None = None
        self._cast_version = -1

    def get(self) -> Tensor:
        """The cast weight, without gradient."""
        weight = self._weight.detach()
        if weight.dtype == self._dtype:
            return weight
        if self._cast is None or self._cast_version != self._weight._version:
            self._cast = weight.to(self._dtype) if self._cast is None else self._cast.copy_(weight)
            self._cast_version = self._weight._version
        return self._cast

    def __deepcopy__(self, memo: dict[int, Any]) -> "CastWeight":
        return CastWeight(memo[id(self._weight)], self._dtype)
