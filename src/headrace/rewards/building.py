"""From what the user gave (the recipe's `[rewards]`, or Python callables) to reward functions."""

import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.config.recipe import Recipe
from headrace.config.rewards import ExactNumber, MathVerify, PythonReward, ReasoningGym, RewardFunctionSpec
from headrace.errors import RecipeError, RewardError
from headrace.python_functions import import_function
from headrace.rewards.exact_number import ExactNumberReward
from headrace.rewards.functions import RewardFunction


def check_rewards(recipe: Recipe) -> None:
    """Make sure that there are rewards where the algorithm, or one that it is compared with, learns from them.

    Raises:
        RecipeError: There are none.
    """
    if recipe.rewards.functions:
        return
    if recipe.algorithm.learns_from_rewards:
        raise RecipeError(
            "rewards.functions is empty, so nothing could be learned; add for instance [[rewards.functions]] type = 'exact_number', or "
            "learn from a teacher alone (algorithm.name = 'distill')"
        )
    idle = [label for label, algorithm in recipe.shadow_algorithms.items() if algorithm.learns_from_rewards]
    if idle:
        raise RecipeError(
            f"shadow.algorithms: {', '.join(idle)} would learn from rewards, but rewards.functions is empty, so there is nothing to "
            "compare; add a reward function, or leave them out"
        )


def build_reward_functions(specs: Sequence[RewardFunctionSpec], *, base_folder: Path) -> list[RewardFunction]:
    """The reward functions of a recipe, in its order; a name that comes twice gets a number.

    Args:
        specs: `rewards.functions` of the recipe.
        base_folder: The recipe's folder: files and modules are looked up there first, then where the command runs.

    Raises:
        RecipeError: A function cannot be imported.
        RewardError: Its library is not installed.
    """
    callables = [_callable_of(spec, base_folder) for spec in specs]
    return _named([(name, spec.weight, call) for (name, call), spec in zip(callables, specs, strict=True)])


def wrap_reward_functions(callables: Sequence[Callable[..., Any]], weights: Sequence[float] | None = None) -> list[RewardFunction]:
    """Reward functions from Python callables with TRL's signature: functions, lambdas, partials, objects with `__call__`.

    Args:
        callables: The functions; they are sent to the workers with cloudpickle.
        weights: One factor for each; None gives all 1.

    Raises:
        RewardError: Something is not callable, or the weights are not as many as the functions.
    """
    for call in callables:
        if not callable(call):
            raise RewardError(f"a reward function must be callable, but {call!r:.100} is not")
    weights = [1.0] * len(callables) if weights is None else weights
    if len(weights) != len(callables):
        raise RewardError(f"there are {len(weights)} reward weights for {len(callables)} reward functions; give one for each")
    return _named([(_readable_name(call), weight, call) for call, weight in zip(callables, weights, strict=True)])


def _named(functions: Sequence[tuple[str, float, Callable[..., Any]]]) -> list[RewardFunction]:
    names: list[str] = []
    for name, _, _ in functions:
        candidates = (name if number == 1 else f"{name}_{number}" for number in range(1, len(functions) + 1))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return [RewardFunction(name=name, weight=weight, call=call) for name, (_, weight, call) in zip(names, functions, strict=True)]


def _readable_name(call: Any) -> str:
    if isinstance(call, functools.partial):
        return _readable_name(call.func)
    name = getattr(call, "__name__", type(call).__name__)
    return "lambda" if name == "<lambda>" else name


def _callable_of(spec: RewardFunctionSpec, base_folder: Path) -> tuple[str, Callable[..., Any]]:
    match spec:
        case ExactNumber():
            return spec.type, ExactNumberReward(answer_column=spec.answer_column)
        case MathVerify():
            module = _needs("headrace.rewards.math_verify", package="math-verify", extra="math")
            return spec.type, module.MathVerifyReward(answer_column=spec.answer_column)
        case ReasoningGym():
            module = _needs("headrace.rewards.reasoning_gym", package="reasoning-gym", extra="gym")
            return spec.type, module.ReasoningGymReward()
        case PythonReward():
            function = import_function(spec.function, key="rewards.functions", base_folder=base_folder)
            return spec.function.rpartition(":")[2], function


def _needs(module: str, *, package: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RewardError(
            f"rewards of type {module.rpartition('.')[2]!r} need the package {package} ({error}); run: pip install 'headrace[{extra}]'"
        ) from error
