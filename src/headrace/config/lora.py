"""`[lora]`: a low-rank adapter is trained instead of all weights."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section
from headrace.config.model_facts import ModelFacts
from headrace.errors import RecipeError

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
    chosen = [layer for layer in linear_layers(model) if lora.target_modules == "all-linear" or _is_one_of(layer, lora.target_modules)]
    return sum(lora.rank * sum(model.matrices[layer]) for layer in chosen)


def linear_layers(model: ModelFacts) -> list[str]:
    """Names of all linear layers but the output layer."""
    return [name for name in model.matrices if not any(part in name for part in _NOT_LINEAR)]


def check_targets(lora: LoraSection, layers: Sequence[str]) -> None:
    """Compare `target_modules` with the names of a model's linear layers, the output layer left out.

    Raises:
        RecipeError: One of them is no linear layer's, or there is no such layer at all.
    """
    targets = [] if lora.target_modules == "all-linear" else lora.target_modules
    unknown = [target for target in targets if not any(_is_one_of(layer, [target]) for layer in layers)]
    if unknown or not layers:
        known = ", ".join(sorted({layer.rpartition(".")[2] for layer in layers})) or "none"
        raise RecipeError(
            f"lora.target_modules: {', '.join(unknown) or 'all-linear'} names no linear layer of the model, and only these can have an "
            f"adapter (the output layer cannot); set it to 'all-linear' or names among these: {known}"
        )


def _is_one_of(layer: str, names: Sequence[str]) -> bool:
    return any(layer == name or layer.endswith(f".{name}") for name in names)
