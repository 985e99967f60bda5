"""New weights for the engine's model: checked by name and shape, cast, and taken over by whatever computes with them.

Of a model with a LoRA adapter, the adapter's weights are what is new; its base stays.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from headrace.errors import ModelError

_WEIGHTS, _BIASES = (".weight", ".lora_A.default.weight"), (".bias", ".lora_B.default.weight")
"""What a layer takes over, in two lists, by the ends of its names; the second of each is what LoRA adds, with peft's names."""


class WeightTaker(Protocol):
    """A layer that computes in the place of one or several of the model's own."""

    def load(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Take over the layers' weights and biases in their order, or of layers with LoRA the matrices A and B."""
        ...


class ModelWeights:
    """The parameters that are published by their names, and where new values for them go. Made while the model has all its layers."""

    def __init__(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        adapter = {name: parameter for name, parameter in parameters.items() if name.endswith((_WEIGHTS[1], _BIASES[1]))}
        names: dict[int, list[str]] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._own: dict[str, nn.Parameter] = {}
        """Those that the model itself computes with."""
        self._linears: list[tuple[WeightTaker, list[str], list[str]]] = []
        for name, parameter in (adapter or parameters).items():
            names.setdefault(id(parameter), []).append(name)
            self._shapes[name] = parameter.shape
            self._own[name] = parameter
        self._tied_names = {name: tied for tied in names.values() for name in tied}

    def redirect(self, linear: WeightTaker, layers: Sequence[str]) -> None:
        """From now on what is published of these layers goes to the one that computes in their place."""
        weights, biases = self._published(layers, _WEIGHTS), self._published(layers, _BIASES)
        if weights:
            self._linears.append((linear, weights, biases))
        for name in weights + biases:
            del self._own[name]

    def _published(self, layers: Sequence[str], ends: tuple[str, str]) -> list[str]:
        return [name for layer in layers for end in ends if (name := layer + end) in self._shapes]

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

        for name, parameter in self._own.items():
            parameter.copy_(find(name))

        def find_cast(name: str) -> torch.Tensor:
            """What a tied parameter of the model has just taken over, else the new weight."""
            return next((self._own[tied].detach() for tied in self._tied_names[name] if tied in self._own), find(name))

        for linear, weight_names, bias_names in self._linears:
            linear.load([find_cast(name) for name in weight_names], [find_cast(name) for name in bias_names])
