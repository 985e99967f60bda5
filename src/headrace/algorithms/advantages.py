"""Advantages: how much better a rollout did than its siblings.

Three functions of one shape, so that any of them can be handed to the batcher: groups of rewards in, groups of
advantages out, in the same order. Group i holds the rewards of one prompt's rollouts; None (or a reward that is not
finite) marks a rollout that takes no part: it is left out of every statistic and gets None. Groups are what the
caller says they are, of any size; nothing is reshaped. Plain Python, without torch, because the controller's side calls it.

A group of one, and a group whose rewards are all equal, gets exactly 0: there is nothing to compare, whatever
rounding says.
"""

import math
from collections.abc import Sequence

Rewards = Sequence[float | None]
Advantages = list[float | None]

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as TRL does; it bounds what a nearly constant group can weigh."""


def centred_advantages(groups: Sequence[Rewards]) -> list[Advantages]:
    """Reward minus the group's mean: r - mean(r).

    Source: Dr. GRPO (arXiv 2503.20783), which drops the division because it favours prompts that are nearly solved or
    nearly hopeless.
    """
    return [_centred(rewards) for rewards in groups]


def group_scaled_advantages(groups: Sequence[Rewards], *, epsilon: float = EPSILON) -> list[Advantages]:
    """Reward minus the group's mean, over the group's standard deviation: (r - mean(r)) / (std(r) + epsilon).

    Source: GRPO (DeepSeekMath, arXiv 2402.03300). The standard deviation is the sample one (n - 1), as in TRL.

    Example: `[[1.0, None, 0.0, 0.0]]` gives `[[1.1545, None, -0.5773, -0.5773]]`: mean 1/3 and deviation 0.5774 of three.
    """
    return [_divided(_centred(rewards), by=_standard_deviation(rewards) + epsilon) for rewards in groups]


def batch_scaled_advantages(groups: Sequence[Rewards], *, epsilon: float = EPSILON) -> list[Advantages]:
    """Reward minus the group's mean, over the standard deviation of all rewards of the batch.

    Source: TRL, `scale_rewards = "batch"` (after arXiv 2508.08221). It needs the whole batch: given a part of it, it gives
    other numbers.
    """
    divisor = _standard_deviation([reward for rewards in groups for reward in rewards]) + epsilon
    return [_divided(_centred(rewards), by=divisor) for rewards in groups]


def _centred(rewards: Rewards) -> Advantages:
    present = _present(rewards)
    # The mean of equal numbers can round to another number, so equality decides, not subtraction.
    mean = present[0] if len(set(present)) == 1 else math.fsum(present) / max(len(present), 1)
    return [reward - mean if reward is not None and math.isfinite(reward) else None for reward in rewards]


def _divided(advantages: Advantages, *, by: float) -> Advantages:
    return [advantage / by if advantage else advantage for advantage in advantages]


def _standard_deviation(rewards: Rewards) -> float:
    present = _present(rewards)
    mean = math.fsum(present) / max(len(present), 1)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in present) / max(len(present) - 1, 1))


def _present(rewards: Rewards) -> list[float]:
    return [reward for reward in rewards if reward is not None and math.isfinite(reward)]
