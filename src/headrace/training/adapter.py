"""A policy with a LoRA adapter, as peft puts it into a transformers model: what learns, what is frozen, and the model without it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

ADAPTER = "default"
"""peft's name of a model's only adapter; it is part of the parameters' names, but not in files."""
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""Of names in files."""


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether the model is a frozen base with an adapter."""
    return hasattr(model, "peft_config")


def learning_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The adapter's, or else all, by name; a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapter as peft does: `adapter_model.safetensors` and `adapter_config.json`.

    Raises:
        OSError, SafetensorError: The disk is full, or not writable.
    """
    learning: dict[str, Any] = learning_parameters(model)
    tensors = {_PREFIX + name.replace(f".{ADAPTER}.", "."): parameter.detach() for name, parameter in learning.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config: Any = model.peft_config[ADAPTER]  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue] # set by peft
    config.save_pretrained(folder)


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """The weights of a saved adapter, by the names that they have in a model.

    Raises:
        OSError, SafetensorError: The file is missing or damaged.
    """
    saved = load_file(folder / WEIGHTS_FILE)
    return {re.sub(r"\.(lora_[AB])\.weight$", rf".\1.{ADAPTER}.weight", name.removeprefix(_PREFIX)): saved[name] for name in saved}


@contextmanager
def adapter_off(model: PreTrainedModel) -> Iterator[None]:
    """While it lasts, the model is its base."""
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def cast_frozen_linears(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Keep the weights of frozen linear layers in the type that they are multiplied in, and in no other.

    The output head stays, as a tied one is the embedding too.
    """
    head = model.get_output_embeddings()
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer is not head and not layer.weight.requires_grad:
            layer.weight.data = layer.weight.data.to(dtype)
