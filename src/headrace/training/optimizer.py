"""One optimizer update from summed gradients: divide once, clip, AdamW; or leave everything as it is."""

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

    def update(self, *, denominator: float, learning_rate: float) -> float:
        """Make one update from the gradients' sums, and clear them.

        Returns:
            Norm of the divided gradient, before clipping. When it is not finite, parameters and moments are as before.
        """
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None] or self._zero_gradients()
        grad_norm = float(nn.utils.get_total_norm(gradients)) / denominator
        if torch.tensor(grad_norm).isfinite():
            # One pass over the gradients for both the division and the clipping.
            factor = min(1.0, self._max_grad_norm / max(grad_norm, 1e-12)) / denominator
            for gradient in gradients:
                gradient.mul_(factor)
            for group in self._adamw.param_groups:
                group["lr"] = learning_rate
            self._adamw.step()
            # Fused AdamW changes weights without counting it; `CastWeight` and autograd's checks go by the count.
            torch.autograd.graph.increment_version(self._parameters)
        self.clear()
        return grad_norm

    def clear(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def _zero_gradients(self) -> list[Tensor]:
        """When no sample had a gradient: momentum and decay act all the same, but not on a weight without any gradient."""
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
