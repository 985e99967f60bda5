"""What the user gives, read and tried out before any model is loaded."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.recipe import Recipe
from headrace.data.prompt_text import other_columns, prompt_texts
from headrace.data.rows import Row, rows_from_iterable
from headrace.data.sources import load_rows
from headrace.errors import RecipeError
from headrace.rewards.building import build_reward_functions, wrap_reward_functions
from headrace.rewards.functions import RewardFunction
from headrace.rewards.rehearsal import rehearse
from headrace.rewards.service import ProcessRewardService
from headrace.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Rows and reward functions."""

    rows: Sequence[Row]
    reward_functions: Sequence[RewardFunction]


def inputs_of_recipe(recipe: Recipe, *, base_folder: Path) -> Inputs:
    """Read the data set and import the reward functions that a recipe names.

    Args:
        recipe: The recipe.
        base_folder: The recipe's folder, which relative paths are looked up in first.

    Raises:
        UserError: Anything about them that cannot work.
    """
    if not recipe.rewards.functions:
        raise RecipeError(
            "rewards.functions is empty, so nothing could be learned; add for instance [[rewards.functions]] type = 'exact_number'"
        )
    functions = build_reward_functions(recipe.rewards.functions, base_folder=base_folder)
    return Inputs(rows=load_rows(recipe.data.source, base_folder=base_folder), reward_functions=functions)


def inputs_from_python(
    train_dataset: Iterable[object], reward_funcs: Sequence[Callable[..., Any]], reward_weights: Sequence[float] | None
) -> Inputs:
    """The same from Python objects.

    Raises:
        UserError: Anything about them that cannot work.
    """
    functions = wrap_reward_functions(reward_funcs, reward_weights)
    if not functions:
        raise RecipeError("reward_funcs is empty, so nothing could be learned; pass at least one function")
    return Inputs(rows=rows_from_iterable(train_dataset, origin="train_dataset"), reward_functions=functions)


def check_inputs(inputs: Inputs, recipe: Recipe) -> None:
    """Check the prompts as far as possible without a tokenizer, and call the rewards on the first one.

    Raises:
        UserError: Whatever would break the run later.
    """
    texts = prompt_texts(inputs.rows, recipe.data)
    first = Prompt(row=0, epoch=0, token_ids=(), text=texts[0], columns=other_columns(inputs.rows[0], recipe.data))
    asyncio.run(_rehearse(reward_service(inputs, recipe), first))


def reward_service(inputs: Inputs, recipe: Recipe) -> ProcessRewardService:
    """The processes that run the reward functions."""
    return ProcessRewardService(
        inputs.reward_functions,
        num_workers=recipe.rewards.num_workers,
        time_limit_seconds=recipe.rewards.time_limit_seconds,
        on_failure=recipe.rewards.on_failure,
    )


async def _rehearse(service: ProcessRewardService, prompt: Prompt) -> None:
    try:
        await rehearse(service, [prompt])
    finally:
        await service.close()
