"""From the outcomes of all functions to the reward of each rollout."""

import math
from collections.abc import Sequence
from typing import Literal

from headrace.rewards.functions import RewardFunction
from headrace.rewards.scoring import Failure, Outcome
from headrace.types import RolloutReward

OnFailure = Literal["exclude", "zero"]
"""A rollout for which a function failed has no total; or the failed function counts 0 for it."""


def rollout_reward(functions: Sequence[RewardFunction], outcomes: Sequence[Outcome], on_failure: OnFailure) -> RolloutReward:
    """The reward of one rollout: the weighted sum over the functions that applied.

    Args:
        functions: All functions.
        outcomes: What each of them said of the rollout.
        on_failure: What a failure does to the total.
    """
    named = list(zip(functions, outcomes, strict=True))
    errors = [f"reward function {function.name!r} {outcome.text}" for function, outcome in named if isinstance(outcome, Failure)]
    terms = [function.weight * _value(outcome) for function, outcome in named if outcome is not None]
    total = math.fsum(terms) if terms and not (errors and on_failure == "exclude") else None
    by_function = {function.name: None if isinstance(outcome, Failure) else outcome for function, outcome in named}
    return RolloutReward(total=total, by_function=by_function, error="; ".join(errors) or None)


def _value(outcome: float | Failure) -> float:
    return 0.0 if isinstance(outcome, Failure) else outcome
