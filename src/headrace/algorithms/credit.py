"""From scored groups to the advantages of their tokens: who takes part, what is taken off the reward, what a teacher adds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.algorithms.token_advantages import Outcomes, TokenAdvantages, reverse_kl_advantages
from headrace.types import Floats, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """How the rollouts of a batch, or of single groups of it where groups stand alone, get their advantages."""

    advantages_of: Callable[[Sequence[Outcomes]], TokenAdvantages]
    mask_truncated_completions: bool = False
    """Leave rollouts that hit the length limit out, as if they had no reward."""
    overlong_penalty: Callable[[int], float] | None = None
    """From a completion's length to what is added to its reward."""
    reward_kl: Callable[[Floats, Floats], Floats] | None = None
    """From (log π_behave, log π_reference) of a rollout to what is taken off its reward at each token."""
    distillation_coefficient: float = 0.0
    """Weight of the reverse KL divergence to the teacher."""

    def __call__(self, groups: Sequence[ScoredGroup]) -> TokenAdvantages:
        """Group by group, one array [tokens] for each rollout, or None for one that takes no part."""
        advantages = self.advantages_of([self._outcomes(group) for group in groups])
        if not self.distillation_coefficient:
            return advantages
        return [self._with_teacher(group, of_group) for group, of_group in zip(groups, advantages, strict=True)]

    def has_signal(self, group: ScoredGroup) -> bool:
        """Whether its rewards, before they are shaped, give any rollout an advantage, were the group alone.

        DAPO's condition on a group (arXiv 2503.14476), for rewards of any values and advantages of any kind.
        """
        rewards = trainable_rewards(group, mask_truncated_completions=self.mask_truncated_completions)
        [advantages] = self.advantages_of([Outcomes(rewards=rewards, lengths=_lengths(group))])
        return any(advantage is not None and advantage.any() for advantage in advantages)

    def _outcomes(self, group: ScoredGroup) -> Outcomes:
        rewards = trainable_rewards(group, mask_truncated_completions=self.mask_truncated_completions)
        lengths = _lengths(group)
        if self.overlong_penalty is not None:
            penalty = self.overlong_penalty
            rewards = [None if reward is None else reward + penalty(length) for reward, length in zip(rewards, lengths, strict=True)]
        return Outcomes(rewards=rewards, lengths=lengths, penalties=self._penalties(group))

    def _penalties(self, group: ScoredGroup) -> list[Floats] | None:
        if self.reward_kl is None:
            return None
        assert group.reference_logprobs is not None, f"group {group.group.group_id} was not scored by the reference"
        return [
            self.reward_kl(rollout.logprobs, reference) for rollout, reference in zip(group.rollouts, group.reference_logprobs, strict=True)
        ]

    def _with_teacher(self, group: ScoredGroup, advantages: list[Floats | None]) -> list[Floats | None]:
        assert group.teacher_logprobs is not None, f"group {group.group.group_id} was not scored by the teacher"
        coefficient = self.distillation_coefficient
        return [
            None if advantage is None else advantage + reverse_kl_advantages(rollout.logprobs, teacher, coefficient=coefficient)
            for advantage, rollout, teacher in zip(advantages, group.rollouts, group.teacher_logprobs, strict=True)
        ]


def trainable_rewards(group: ScoredGroup, *, mask_truncated_completions: bool) -> list[float | None]:
    """The rewards that take part in training; None for rollouts without one, and for truncated ones if these are masked.

    Whether a completion is truncated is what the engine said (`finish_reason`), whatever its length or last token.
    """
    return [
        None if mask_truncated_completions and rollout.finish_reason == "length" else reward.total
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
    ]


def _lengths(group: ScoredGroup) -> list[int]:
    return [len(rollout.completion_ids) for rollout in group.rollouts]
