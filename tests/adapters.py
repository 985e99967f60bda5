"""Random LoRA adapters in tiny models: B is not zero, so that every number depends on it."""

import torch
from transformers import PreTrainedModel

from headrace.config.lora import LoraSection
from headrace.launch.adapters import add_adapter
from headrace.training.adapter import learning_parameters

LORA = LoraSection(rank=3, alpha=4.5)


def adapted(model: PreTrainedModel, lora: LoraSection = LORA, *, seed: int = 0, size: float = 0.1) -> PreTrainedModel:
    """The model with an adapter of random numbers, changed in place."""
    add_adapter(model, lora, base="org/base", seed=seed)
    randomise(model, seed=seed, size=size)
    return model


def randomise(model: PreTrainedModel, *, seed: int, size: float = 0.1) -> None:
    """Give the adapter other numbers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learning_parameters(model).values():
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
