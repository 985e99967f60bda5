"""`[lora]`: a low-rank adapter is trained instead of all weights."""

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section
from headrace.config.model_facts import ModelFacts

_NOT_LINEAR = ("embed", "wte", "wpe", "lm_head")
"""Parts of names of matrices that "all-linear" leaves out: embeddings and the output layer."""


class LoraSection(Section):
    """LoRA (arXiv 2106.09685; needs `pip install headrace[lora]`): a small adapter learns, all other weights stay as they are.

    Beside x · Wᵀ, each chosen linear layer computes alpha / rank · x · Aᵀ · Bᵀ, and A and B learn. Without this section all weights learn.
    There is no dropout, as the engine's log-probabilities must be the trainer's.
    """

    rank: int = Field(default=16, ge=1)
    """Rows of A, columns of B (peft's `r`)."""
    alpha: float = Field(default=32.0, gt=0)
    """The product is scaled by alpha / rank (peft's `lora_alpha`)."""
    target_modules: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """The layers: all linear ones but the output layer, or those whose names are or end in one of a list, such as
    `["q_proj", "v_proj"]`."""


def count_adapter_parameters(lora: LoraSection, model: ModelFacts) -> int:
    """Numbers in A [rank, in features] and B [out features, rank] of every chosen layer."""
    shapes = (shape for name, shape in model.matrices.items() if _is_target(lora, name))
    return sum(lora.rank * sum(shape) for shape in shapes)


def _is_target(lora: LoraSection, layer: str) -> bool:
    if lora.target_modules == "all-linear":
        return not any(part in layer for part in _NOT_LINEAR)
    return any(layer == name or layer.endswith(f".{name}") for name in lora.target_modules)
