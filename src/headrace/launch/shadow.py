"""From a recipe's `[shadow]` to what the algorithms that are only compared with need."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.algorithms.credit import Credit
from headrace.config.recipe import Recipe
from headrace.launch.credit import make_credit, user_surrogate
from headrace.training.shadow import Shadows


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowInputs:
    """What may be a user's function, by the algorithms' labels."""

    credits: Mapping[str, Credit]
    """From scored groups to advantages."""
    token_losses: Mapping[str, Callable[..., Any] | None]
    """Surrogates."""


def shadow_inputs(recipe: Recipe, *, base_folder: Path) -> ShadowInputs:
    """Import what the algorithms of `[shadow]` name; without that section nothing.

    Raises:
        RecipeError: A function cannot be imported.
    """
    algorithms, length = recipe.shadow_algorithms, recipe.sampling.max_completion_length
    return ShadowInputs(
        credits={
            label: make_credit(algorithm, max_completion_length=length, base_folder=base_folder) for label, algorithm in algorithms.items()
        },
        token_losses={label: user_surrogate(algorithm, base_folder=base_folder) for label, algorithm in algorithms.items()},
    )


def make_shadows(recipe: Recipe, inputs: ShadowInputs) -> Shadows | None:
    """What the trainer compares with; None without `[shadow]`."""
    if recipe.shadow is None:
        return None
    return Shadows(
        algorithms=recipe.shadow_algorithms,
        token_losses=inputs.token_losses,
        num_layers=recipe.shadow.num_layers,
        every_steps=recipe.shadow.every_steps,
    )
