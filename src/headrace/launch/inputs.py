"""What the user gives, read and tried out before any model is loaded."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.algorithms.credit import Credit
from headrace.config.recipe import Recipe
from headrace.data.prompt_text import other_columns, prompt_texts
from headrace.data.rows import Row, rows_from_iterable
from headrace.data.sources import load_rows
from headrace.errors import RecipeError
from headrace.launch.adapters import check_peft
from headrace.launch.credit import make_credit, user_surrogate
from headrace.launch.shadow import ShadowInputs, shadow_inputs
from headrace.launch.user_functions import try_out
from headrace.rewards.building import build_reward_functions, check_rewards, wrap_reward_functions
from headrace.rewards.functions import RewardFunction
from headrace.rewards.rehearsal import rehearse
from headrace.rewards.service import ProcessRewardService
from headrace.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Rows, and whatever may be a user's function."""

    rows: Sequence[Row]
    reward_functions: Sequence[RewardFunction]
    credit: Credit
    """From scored groups to advantages."""
    token_losses: Callable[..., Any] | None
    """The user's surrogate."""
    shadows: ShadowInputs
    """The same of algorithms that are only compared with."""


def inputs_of_recipe(recipe: Recipe, *, base_folder: Path) -> Inputs:
    """Read the data set and import the reward functions that a recipe names.

    Args:
        recipe: The recipe.
        base_folder: The recipe's folder, which relative paths are looked up in first.

    Raises:
        UserError: Anything about them that cannot work.
    """
    check_rewards(recipe)
    functions = build_reward_functions(recipe.rewards.functions, base_folder=base_folder)
    return _inputs(recipe, load_rows(recipe.data.source, base_folder=base_folder), functions, base_folder)


def inputs_from_python(
    recipe: Recipe, train_dataset: Iterable[object], reward_funcs: Sequence[Callable[..., Any]], reward_weights: Sequence[float] | None
) -> Inputs:
    """The same from Python objects.

    Raises:
        UserError: Anything about them that cannot work.
    """
    functions = wrap_reward_functions(reward_funcs, reward_weights)
    if not functions and recipe.algorithm.learns_from_rewards:
        raise RecipeError("reward_funcs is empty, so nothing could be learned; pass at least one function")
    return _inputs(recipe, rows_from_iterable(train_dataset, origin="train_dataset"), functions, Path.cwd())


def check_inputs(inputs: Inputs, recipe: Recipe) -> None:
    """Check the prompts as far as possible without a tokenizer, call the user's functions, and look for peft where it is needed.

    Raises:
        UserError: Whatever would break the run later.
    """
    if recipe.lora is not None:
        check_peft("[lora]")
    try_out(recipe.algorithm, inputs.credit, inputs.token_losses)
    for label, algorithm in recipe.shadow_algorithms.items():
        try_out(algorithm, inputs.shadows.credits[label], inputs.shadows.token_losses[label])
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


def _inputs(recipe: Recipe, rows: Sequence[Row], reward_functions: Sequence[RewardFunction], base_folder: Path) -> Inputs:
    return Inputs(
        rows=rows,
        reward_functions=reward_functions,
        credit=make_credit(recipe.algorithm, max_completion_length=recipe.sampling.max_completion_length, base_folder=base_folder),
        token_losses=user_surrogate(recipe.algorithm, base_folder=base_folder),
        shadows=shadow_inputs(recipe, base_folder=base_folder),
    )


async def _rehearse(service: ProcessRewardService, prompt: Prompt) -> None:
    try:
        await rehearse(service, [prompt])
    finally:
        await service.close()
