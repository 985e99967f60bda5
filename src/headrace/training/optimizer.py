"""One optimizer update from summed gradients: divide once, clip, AdamW."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.config.training import TrainingSection


class PolicyOptimizer:
    """AdamW over all parameters; weight decay for matrices only, as is usual (not for norms and biases)."""

    def __init__(self, parameters: Iterable[nn.Parameter], training: TrainingSection) -> None:
        self._parameters = list(parameters)
        self._max_grad_norm = training.max_grad_norm
        matrices = [parameter for parameter in self._parameters if parameter.ndim >= 2]
        vectors = [parameter for parameter in self._parameters if parameter.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": training.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_epsilon,
            fused=True,
        )

    def grad_norm(self, *, denominator: float) -> float:
        """Norm of the gradients' sums, divided, before clipping."""
        return float(nn.utils.get_total_norm(self._gradients())) / denominator

    def update(self, *, grad_norm: float, denominator: float, learning_rate: float) -> None:
        """Make one update from the gradients' sums, and clear them.

        Args:
            grad_norm: What `grad_norm` says of them; finite.
            denominator: What they are divided by.
            learning_rate: Of this update.
        """
        # One pass over the gradients for both the division and the clipping.
        factor = min(1.0, self._max_grad_norm / max(grad_norm, 1e-12)) / denominator
        for gradient in self._gradients():
            gradient.mul_(factor)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        # Fused AdamW changes weights without counting it; `CastWeight` and autograd's checks go by the count.
        torch.autograd.graph.increment_version(self._parameters)
        self.clear()

    def clear(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def _gradients(self) -> list[Tensor]:
        """Zeros when no sample had a gradient: momentum and decay act all the same, but not on a weight without any gradient."""
        if all(parameter.grad is None for parameter in self._parameters):
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def state(self) -> dict[str, Any]:
        """Moments and settings, to be given to `load_state`."""
        return self._adamw.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ValueError: It has other parameters.
        """
        self._adamw.load_state_dict(state)
