"""From scored groups to trainable samples: who takes part, with which advantages."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headrace.telemetry.events import TrainedGroup
from headrace.types import Floats, Rollout, Sample, ScoredGroup, SharedPromptRow

CreditFunction = Callable[[Sequence[ScoredGroup]], Sequence[Sequence[Floats | None]]]
"""From groups to the advantages of each rollout's tokens; None takes no part. See `headrace.algorithms.credit`."""


def with_advantages(
    groups: Sequence[ScoredGroup], *, credit: CreditFunction, shadow_credits: Mapping[str, CreditFunction]
) -> list[TrainedGroup]:
    """Give every rollout its advantages, in the order of the groups.

    Args:
        groups: The batch, or one group of it when the advantages of groups do not depend on one another.
        credit: What turns outcomes into advantages.
        shadow_credits: The same of algorithms that are only compared with, by their names.
    """
    shadows = {name: shadow_credit(groups) for name, shadow_credit in shadow_credits.items()}
    return [
        TrainedGroup(scored=group, advantages=advantages, shadow_advantages={name: of_all[index] for name, of_all in shadows.items()})
        for index, (group, advantages) in enumerate(zip(groups, credit(groups), strict=True))
    ]


def row_of(group: TrainedGroup) -> SharedPromptRow | None:
    """The group's samples behind their prompt, without the rollouts whose advantage is None; None when no rollout is left."""
    return _row(group, group.advantages)


def shadow_row_of(group: TrainedGroup) -> SharedPromptRow | None:
    """The rollouts without an advantage that algorithms only compared with would train on, with an advantage of 0; None without any."""
    return _row(group, [_only_for_shadows(group, index) for index in range(len(group.advantages))])


def _only_for_shadows(group: TrainedGroup, index: int) -> Floats | None:
    if group.advantages[index] is not None or all(of_group[index] is None for of_group in group.shadow_advantages.values()):
        return None
    return np.zeros(len(group.scored.rollouts[index].completion_ids), np.float32)


def _row(group: TrainedGroup, advantages_of_rollouts: Sequence[Floats | None]) -> SharedPromptRow | None:
    admitted = group.scored.group
    samples = tuple(
        _sample(rollout, advantages, {name: of_group[index] for name, of_group in group.shadow_advantages.items()})
        for index, (rollout, advantages) in enumerate(zip(group.scored.rollouts, advantages_of_rollouts, strict=True))
        if advantages is not None
    )
    return SharedPromptRow(group_id=admitted.group_id, prompt_ids=admitted.prompt.token_ids, samples=samples) if samples else None


def _sample(rollout: Rollout, advantages: Floats, shadow_advantages: Mapping[str, Floats | None]) -> Sample:
    return Sample(
        completion_ids=rollout.completion_ids,
        logprobs=rollout.logprobs,
        versions=rollout.versions,
        advantages=advantages,
        shadow_advantages=shadow_advantages,
    )
