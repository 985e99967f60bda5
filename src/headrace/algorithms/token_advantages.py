"""Advantages of tokens: from what happened to the groups of a batch to a number for each sampled token.

Every function takes `Outcomes` group by group and gives back, group by group, one array for each rollout, [its tokens] float32, or None for
a rollout that takes no part. Numpy, without torch, because the controller's side calls it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.advantages import Advantages, Rewards, centred_advantages
from headrace.types import Floats

TokenAdvantages = list[list[Floats | None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcomes:
    """A group's rollouts, as far as advantages depend on them."""

    rewards: Rewards
    """Of every rollout; None (or a value that is not finite) takes no part."""
    lengths: Sequence[int]
    """Sampled tokens of every rollout."""
    penalties: Sequence[Floats] | None = None
    """What is taken off the reward at each token (a KL penalty, times its weight), of every rollout; None is nothing."""

    @property
    def penalised_rewards(self) -> list[float | None]:
        """Each reward less its rollout's penalties."""
        if self.penalties is None:
            return list(self.rewards)
        return [
            None if reward is None else reward - float(penalty.sum(dtype=np.float64))
            for reward, penalty in zip(self.rewards, self.penalties, strict=True)
        ]


def outcome_advantages(
    groups: Sequence[Outcomes], *, advantages_of: Callable[[list[list[float | None]], list[Sequence[int]]], Sequence[Advantages]]
) -> TokenAdvantages:
    """Every token of a rollout has the rollout's advantage.

    Args:
        groups: What happened.
        advantages_of: From rewards (less penalties) and lengths of the groups to advantages, see `advantages.py`.
    """
    of_rollouts = advantages_of([group.penalised_rewards for group in groups], [group.lengths for group in groups])
    return [
        [
            None if advantage is None else np.full(length, advantage, np.float32)
            for advantage, length in zip(advantages, group.lengths, strict=True)
        ]
        for group, advantages in zip(groups, of_rollouts, strict=True)
    ]


def no_outcome_advantages(groups: Sequence[Outcomes]) -> TokenAdvantages:
    """Zero for every token of every rollout, with a reward or not: for what is learned from a teacher alone."""
    return [[np.zeros(length, np.float32) for length in group.lengths] for group in groups]


def token_rewards(groups: Sequence[Outcomes]) -> TokenAdvantages:
    """What is earned at each token: the reward at the last one, less the penalty at each. A critic turns them into advantages."""
    return [
        [
            _token_rewards(reward, length, None if group.penalties is None else group.penalties[index])
            for index, (reward, length) in enumerate(zip(group.rewards, group.lengths, strict=True))
        ]
        for group in groups
    ]


def whitened_advantages(groups: Sequence[Outcomes]) -> TokenAdvantages:
    """What is still to be earned at each token, whitened over all tokens of the batch: (G - mean(G)) / sqrt(var(G) + 1e-8).

    Source: REINFORCE++ (arXiv 2501.03262), without discount. The variance divides by n, as OpenRLHF does (verl: n - 1).
    """
    return _whitened([[None if rewards is None else _returns(rewards) for rewards in group] for group in token_rewards(groups)])


def baseline_whitened_advantages(groups: Sequence[Outcomes]) -> TokenAdvantages:
    """As `whitened_advantages`, with the group's mean subtracted from its rewards before.

    Source: REINFORCE++-baseline (arXiv 2501.03262).
    """
    centred = centred_advantages([group.rewards for group in groups])
    return whitened_advantages(
        [
            Outcomes(rewards=rewards, lengths=group.lengths, penalties=group.penalties)
            for rewards, group in zip(centred, groups, strict=True)
        ]
    )


def reverse_kl_advantages(behaviour_logprobs: Floats, teacher_logprobs: Floats, *, coefficient: float) -> Floats:
    """What a teacher thinks of each token of a rollout: -coefficient · (log π_behave - log π_teacher) [tokens].

    Source: on-policy distillation (thinkingmachines.ai/blog/on-policy-distillation), with no discount: the policy gradient with this
    advantage is that of KL(π ‖ π_teacher) at each token. As a loss whose gradient goes through log π alone, the same expression would
    have an expected gradient of zero.
    """
    return (coefficient * (teacher_logprobs - behaviour_logprobs)).astype(np.float32)


def generalized_advantages(rewards: Floats, values: Floats, *, gamma: float, lam: float) -> Floats:
    """GAE of one rollout: A_t = δ_t + gamma · lam · A_{t+1} with δ_t = r_t + gamma · V_{t+1} - V_t [tokens].

    Source: Schulman et al., arXiv 1506.02438. V is 0 behind the last token. With lam = 1 it is the return less the value.

    Args:
        rewards: Earned at each token [tokens].
        values: Of the state that each token was sampled in [tokens].
        gamma: Discount.
        lam: Weight of longer sums.
    """
    deltas = rewards + gamma * np.append(values[1:], np.float32(0)) - values
    return _discounted(deltas, gamma * lam)


def _token_rewards(reward: float | None, length: int, penalty: Floats | None) -> Floats | None:
    if reward is None or not math.isfinite(reward):
        return None
    earned = np.zeros(length, np.float32) if penalty is None else -penalty.astype(np.float32)
    earned[-1] += reward
    return earned


def _returns(rewards: Floats) -> Floats:
    return _discounted(rewards, 1.0)


def _discounted(values: NDArray[np.floating], factor: float) -> Floats:
    """Σ_{s ≥ t} factor^(s - t) · value_s."""
    sums = accumulate(values[::-1].astype(np.float64).tolist(), lambda later, value: value + factor * later)
    return np.array(list(sums)[::-1], np.float32)


def _whitened(groups: TokenAdvantages) -> TokenAdvantages:
    present = [array for group in groups for array in group if array is not None]
    if not present:
        return groups
    every_token = np.concatenate(present).astype(np.float64)
    if np.ptp(every_token) == 0:
        return [[None if array is None else np.zeros_like(array) for array in group] for group in groups]
    mean, deviation = every_token.mean(), math.sqrt(every_token.var() + 1e-8)
    return [[None if array is None else ((array - mean) / deviation).astype(np.float32) for array in group] for group in groups]
