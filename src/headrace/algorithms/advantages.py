"""Advantages: how much better a rollout did than its siblings.

Functions of one shape: groups of rewards in, groups of advantages out, in the same order. Group i holds the rewards of one prompt's
rollouts; None (or a reward that is not finite) marks a rollout that takes no part: it is left out of every statistic and gets None. Groups
are what the caller says they are, of any size; nothing is reshaped. Plain Python, without torch, because the controller's side
calls it. What they become token by token is in `token_advantages.py`.

A group of one, and a group whose rewards are equal but for rounding, gets exactly 0: there is nothing to compare.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard

Rewards = Sequence[float | None]
Advantages = list[float | None]

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as TRL does; it bounds what a nearly constant group can weigh."""
_ROUNDING = 1e-9
"""Rewards are equal when they differ by no more than this share of the largest: 0.1 + 0.2 and 0.3 do."""


def centred_advantages(groups: Sequence[Rewards]) -> list[Advantages]:
    """Reward minus the group's mean: r - mean(r).

    Source: Dr. GRPO (arXiv 2503.20783), which drops the division because it favours prompts that are nearly solved or
    nearly hopeless.
    """
    return [_minus(rewards, _mean(_present(rewards))) for rewards in groups]


def group_scaled_advantages(groups: Sequence[Rewards], *, ddof: int = 1, epsilon: float = EPSILON) -> list[Advantages]:
    """Reward minus the group's mean, over the group's standard deviation: (r - mean(r)) / (std(r) + epsilon).

    Source: GRPO (DeepSeekMath, arXiv 2402.03300). With `ddof` 1 the standard deviation is the sample one (n - 1), as in TRL and verl.

    Example: `[[1.0, None, 0.0, 0.0]]` gives `[[1.1545, None, -0.5773, -0.5773]]`: mean 1/3 and deviation 0.5774 of three.
    """
    deviations = [_standard_deviation(rewards, ddof=ddof) for rewards in groups]
    return [_divided(centred, by=std + epsilon) for centred, std in zip(centred_advantages(groups), deviations, strict=True)]


def batch_scaled_advantages(groups: Sequence[Rewards], *, ddof: int = 1, epsilon: float = EPSILON) -> list[Advantages]:
    """Reward minus the group's mean, over the standard deviation of all rewards of the batch.

    Source: TRL, `scale_rewards = "batch"` (after arXiv 2508.08221). It needs the whole batch: given a part of it, it gives
    other numbers.
    """
    divisor = _standard_deviation([reward for rewards in groups for reward in rewards], ddof=ddof) + epsilon
    return [_divided(centred, by=divisor) for centred in centred_advantages(groups)]


def leave_one_out_advantages(groups: Sequence[Rewards]) -> list[Advantages]:
    """Reward minus the mean of the others: r_i - Σ_{j≠i} r_j / (n - 1) = n / (n - 1) · (r_i - mean(r)).

    Source: RLOO (arXiv 2402.14740). The baseline does not depend on the rollout itself, so that it adds no bias.

    Example: `[[1.0, 2.0, 3.0, 4.0]]` gives `[[-2, -2/3, 2/3, 2]]`.
    """
    sizes = [len(_present(rewards)) for rewards in groups]
    return [_divided(centred, by=1 - 1 / max(size, 2)) for centred, size in zip(centred_advantages(groups), sizes, strict=True)]


def length_weighted_advantages(groups: Sequence[Rewards], lengths: Sequence[Sequence[int]]) -> list[Advantages]:
    """Reward minus the length-weighted mean: r_i - Σ_j |o_j| r_j / Σ_j |o_j|.

    Source: OPO (arXiv 2505.23585): the baseline of least variance, if the squared norm of a sequence's gradient grows with its length.

    Args:
        groups: Rewards.
        lengths: Completion tokens of every rollout, those without a reward included.
    """
    return [_minus(rewards, _length_weighted_mean(rewards, of_rollouts)) for rewards, of_rollouts in zip(groups, lengths, strict=True)]


def pass_at_k_advantages(groups: Sequence[Rewards], *, k: int, epsilon: float = EPSILON) -> list[Advantages]:
    """What a rollout adds to the best of k: (E[best of k | it is among them] - E[best of k]) / (std(best of k) + epsilon).

    Over all subsets of k siblings without repetition, in closed form. For rewards of 0 and 1 these are the analytic advantages of Pass@k
    Training (arXiv 2508.10751), whose group mean is 1 - C(wrong, k) / C(n, k). With k = 1 it is the reward against the group's mean and
    deviation (n, not n - 1).

    With k of k rollouts there is only one subset, and no advantage; a group with k rewards or fewer takes one less than there are.
    """
    return [_pass_at_k(rewards, k, epsilon) for rewards in groups]


def _length_weighted_mean(rewards: Rewards, lengths: Sequence[int]) -> float:
    return _mean(_present(rewards), [length for reward, length in zip(rewards, lengths, strict=True) if _takes_part(reward)])


def _pass_at_k(rewards: Rewards, k: int, epsilon: float) -> Advantages:
    present = sorted(_present(rewards))
    k = max(min(k, len(present) - 1), 1)
    if _is_constant(present[k - 1 :]):
        return [0.0 if _takes_part(reward) else None for reward in rewards]  # Whichever k they are, the best of them is the same.
    best = _mean(present, _shares_of_best(len(present), k))
    variance = _mean([(reward - best) ** 2 for reward in present], _shares_of_best(len(present), k))

    def best_with(reward: float) -> float:
        others = list(present)
        others.remove(reward)
        return _mean([max(reward, other) for other in others], _shares_of_best(len(others), k - 1)) if k > 1 else reward

    advantages = [best_with(reward) - best if _takes_part(reward) else None for reward in rewards]
    return _divided(advantages, by=math.sqrt(variance) + epsilon)


def _shares_of_best(count: int, k: int) -> list[float]:
    """Share of the subsets of k in which the j-th smallest of so many is the largest."""
    return [math.comb(j, k - 1) / math.comb(count, k) for j in range(count)]


def _minus(rewards: Rewards, baseline: float) -> Advantages:
    constant = _is_constant(_present(rewards))
    return [(0.0 if constant else reward - baseline) if _takes_part(reward) else None for reward in rewards]


def _is_constant(present: Sequence[float]) -> bool:
    return not present or max(present) - min(present) <= _ROUNDING * max(map(abs, present))


def _divided(advantages: Advantages, *, by: float) -> Advantages:
    return [advantage / by if advantage else advantage for advantage in advantages]


def _mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    weights = [1.0] * len(values) if weights is None else weights
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / max(math.fsum(weights), 1e-300)


def _standard_deviation(rewards: Rewards, *, ddof: int) -> float:
    present = _present(rewards)
    mean = _mean(present)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in present) / max(len(present) - ddof, 1))


def _present(rewards: Rewards) -> list[float]:
    return [reward for reward in rewards if _takes_part(reward)]


def _takes_part(reward: float | None) -> TypeGuard[float]:
    return reward is not None and math.isfinite(reward)
