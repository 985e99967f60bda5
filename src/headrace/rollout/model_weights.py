"""New weights for the engine's model: checked by name and shape, cast, and copied into place."""

from collections.abc import Mapping

import torch
from torch import nn

from headrace.errors import ModelError
from headrace.rollout.packed_linears import PackedLinear


class ModelWeights:
    """The parameters of a model by their Hugging Face names. Made before `pack_linears`, it keeps working after."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        names: dict[int, list[str]] = {}
        self._shapes: dict[str, torch.Size] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            self._shapes[name] = parameter.shape
        self._tied_names = list(names.values())

    def check(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Make sure that the weights are this model's. Of tied parameters one name is enough.

        Raises:
            ModelError: Lists every name that is missing, unexpected or of another shape.
        """
        missing = [names[0] for names in self._tied_names if not any(name in weights for name in names)]
        unexpected = [name for name in weights if name not in self._shapes]
        other_shape = [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(shape)}"
            for name, shape in self._shapes.items()
            if name in weights and weights[name].shape != shape
        ]
        problems = [("missing", missing), ("unexpected", unexpected), ("of another shape", other_shape)]
        if found := "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems if names):
            raise ModelError(
                f"the new weights are not those of the engine's model ({found}); publish the parameters of the same architecture"
            )

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy weights that passed `check` into the model, cast to its types; packed layers are packed again."""
        for names in self._tied_names:
            tensor = next(weights[name] for name in names if name in weights)
            for name in names:
                self._write(name, tensor)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        module_name, _, attribute = name.rpartition(".")
        module = self._model.get_submodule(module_name)
        if isinstance(module, PackedLinear) and attribute == "weight":
            module.pack(tensor)
        else:
            module.get_parameter(attribute).copy_(tensor)
