"""From a recipe's `[algorithm]` to the function that gives rollouts their advantages."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.advantages import (
    Advantages,
    batch_scaled_advantages,
    centred_advantages,
    group_scaled_advantages,
    leave_one_out_advantages,
    length_weighted_advantages,
    pass_at_k_advantages,
)
from headrace.algorithms.credit import Credit
from headrace.algorithms.kl import k1, k2, k3
from headrace.algorithms.shaping import overlong_penalty
from headrace.algorithms.token_advantages import (
    Outcomes,
    TokenAdvantages,
    baseline_whitened_advantages,
    no_outcome_advantages,
    outcome_advantages,
    token_rewards,
    whitened_advantages,
)
from headrace.config import algorithm as parts
from headrace.config.algorithm import AlgorithmSection
from headrace.config.recipe import Recipe
from headrace.controller.rollouts import GroupRules
from headrace.errors import RewardError
from headrace.python_functions import import_function
from headrace.types import Floats

GroupRewards = Sequence[Sequence[float | None]]
Lengths = Sequence[Sequence[int]]
KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Those that a reward can be penalised by."""


def make_credit(algorithm: AlgorithmSection, *, max_completion_length: int, base_folder: Path) -> Credit:
    """The advantages of an algorithm.

    Args:
        algorithm: The algorithm.
        max_completion_length: Tokens.
        base_folder: Where a user's function is looked up first.

    Raises:
        RecipeError: The user's function cannot be imported.
    """
    buffer = math.ceil(algorithm.overlong_buffer_share * max_completion_length)
    return Credit(
        advantages_of=_token_advantages(algorithm.advantage, base_folder),
        mask_truncated_completions=algorithm.mask_truncated_completions,
        overlong_penalty=partial(overlong_penalty, max_length=max_completion_length, buffer=buffer) if buffer else None,
        reward_kl=partial(_reward_kl, beta=algorithm.beta, estimator=algorithm.kl_estimator) if algorithm.penalises_rewards else None,
        distillation_coefficient=algorithm.distillation_coefficient,
    )


def user_surrogate(algorithm: AlgorithmSection, *, base_folder: Path) -> Callable[..., Any] | None:
    """The function of `surrogate.type` 'python'; None for any other.

    Raises:
        RecipeError: It cannot be imported.
    """
    if not isinstance(algorithm.surrogate, parts.PythonSurrogate):
        return None
    return import_function(algorithm.surrogate.function, key="algorithm.surrogate.function", base_folder=base_folder)


def make_group_rules(recipe: Recipe, credit: Credit) -> GroupRules:
    """Which groups are trained on."""
    algorithm = recipe.algorithm
    return GroupRules(
        min_scored=algorithm.min_scored_rollouts,
        max_failed_groups=recipe.rewards.max_failed_groups,
        has_signal=credit.has_signal if algorithm.dynamic_sampling else None,
        max_groups_without_signal=algorithm.max_groups_without_signal,
    )


def _reward_kl(behaviour_logprobs: Floats, reference_logprobs: Floats, *, beta: float, estimator: str) -> Floats:
    behaviour, reference = torch.from_numpy(behaviour_logprobs), torch.from_numpy(reference_logprobs)
    return (beta * KL_ESTIMATORS[estimator](behaviour, reference)).numpy()


def _token_advantages(section: parts.Advantage, base_folder: Path) -> Callable[[Sequence[Outcomes]], TokenAdvantages]:
    match section:
        case parts.WhitenedAdvantage(baseline="none"):
            return whitened_advantages
        case parts.WhitenedAdvantage():
            return baseline_whitened_advantages
        case parts.GaeAdvantage():
            return token_rewards
        case parts.NoOutcomeAdvantage():
            return no_outcome_advantages
        case _:
            return partial(outcome_advantages, advantages_of=_rollout_advantages(section, base_folder))


def _rollout_advantages(section: parts.Advantage, base_folder: Path) -> Callable[[GroupRewards, Lengths], Sequence[Advantages]]:
    match section:
        case parts.GroupAdvantage(scale_rewards="none"):
            return _without_lengths(centred_advantages)
        case parts.GroupAdvantage():
            scaled = {"group": group_scaled_advantages, "batch": batch_scaled_advantages}[section.scale_rewards]
            return _without_lengths(partial(scaled, ddof=section.ddof, epsilon=section.scale_epsilon))
        case parts.LeaveOneOutAdvantage():
            return _without_lengths(leave_one_out_advantages)
        case parts.LengthWeightedAdvantage():
            return length_weighted_advantages
        case parts.PassAtKAdvantage():
            return _without_lengths(partial(pass_at_k_advantages, k=section.k))
        case parts.PythonAdvantage():
            function = import_function(section.function, key="algorithm.advantage.function", base_folder=base_folder)
            return partial(_checked, function, section.function)
    raise AssertionError(section)


def _without_lengths(advantages_of: Callable[[GroupRewards], list[Advantages]]) -> Callable[[GroupRewards, Lengths], list[Advantages]]:
    return lambda rewards, lengths: advantages_of(rewards)


def _checked(function: Callable[..., object], name: str, rewards: GroupRewards, lengths: Lengths) -> Sequence[Advantages]:
    """What a user's function returned, if it has the shape of what it got."""
    try:
        found = function(rewards, lengths)
    except Exception as error:  # it is the user's
        raise RewardError(
            f"algorithm.advantage.function = {name!r} failed for rewards {list(rewards)!r:.200}: {type(error).__name__}: {error}"
        ) from error
    fits = isinstance(found, Sequence) and [_shape(group) for group in found] == [_shape(group) for group in rewards]
    if not fits:
        raise RewardError(
            f"algorithm.advantage.function = {name!r} returned {found!r:.200} for rewards {list(rewards)!r:.200}; it must return one "
            "list for each group, with a finite number for each reward and None for each None"
        )
    return found  # pyright: ignore[reportReturnType] # checked just now


def _shape(group: object) -> list[bool] | None:
    """Which of a group's values are numbers; None for what is no group of numbers and Nones."""
    if not isinstance(group, Sequence) or not all(value is None or (isinstance(value, Real) and math.isfinite(value)) for value in group):
        return None
    return [value is not None for value in group]
