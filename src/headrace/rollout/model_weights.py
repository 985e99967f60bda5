"""New weights for the engine's model: checked by name and shape, cast, and taken over by whatever computes with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from headrace.errors import ModelError


class WeightTaker(Protocol):
    """A layer that computes in the place of one or several of the model's own."""

    def load(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Take over the layers' weights and biases, in their order."""
        ...


class ModelWeights:
    """The parameters of a model by their Hugging Face names, and where new values for them go. Made while the model has all of them."""

    def __init__(self, model: nn.Module) -> None:
        names: dict[int, list[str]] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._copies: dict[str, Callable[[torch.Tensor], object]] = {}
        self._linears: list[tuple[WeightTaker, list[str], list[str]]] = []
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            self._shapes[name] = parameter.shape
            self._copies[name] = parameter.copy_
        self._tied_names = {name: tied for tied in names.values() for name in tied}

    def redirect(self, linear: WeightTaker, layers: Sequence[str]) -> None:
        """From now on the weights and biases of these layers go to the one that computes in their place."""
        weights, biases = [f"{layer}.weight" for layer in layers], [f"{layer}.bias" for layer in layers]
        biases = [name for name in biases if name in self._shapes]
        self._linears.append((linear, weights, biases))
        for name in weights + biases:
            del self._copies[name]

    def check(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Make sure that the weights are this model's. Of tied parameters one name is enough.

        Raises:
            ModelError: Lists every name that is missing, unexpected or of another shape.
        """
        missing = [names[0] for names in self._tied_names.values() if not any(name in weights for name in names)]
        unexpected = [name for name in weights if name not in self._shapes]
        other_shape = [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(shape)}"
            for name, shape in self._shapes.items()
            if name in weights and weights[name].shape != shape
        ]
        problems = [("missing", dict.fromkeys(missing)), ("unexpected", unexpected), ("of another shape", other_shape)]
        if found := "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems if names):
            raise ModelError(
                f"the new weights are not those of the engine's model ({found}); publish the parameters of the same architecture"
            )

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over weights that passed `check`, cast to the model's types."""

        def find(name: str) -> torch.Tensor:
            return next(weights[tied] for tied in self._tied_names[name] if tied in weights)

        for linear, weight_names, bias_names in self._linears:
            linear.load([find(name) for name in weight_names], [find(name) for name in bias_names])
        for name, copy in self._copies.items():
            copy(find(name))
