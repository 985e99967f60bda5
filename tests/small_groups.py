"""Groups with a few tokens, for tests that look at where groups go."""

from collections.abc import Sequence

import numpy as np

from headrace.types import AdmittedGroup, FinishReason, Prompt, Rollout, RolloutReward, ScoredGroup


def prompt(row: int = 0, *, epoch: int = 0) -> Prompt:
    return Prompt(row=row, epoch=epoch, token_ids=(1, 2), text=f"prompt {row}")


def rollout(*versions: int, finish_reason: FinishReason = "stop", text: str = "") -> Rollout:
    """One token for each version given."""
    return Rollout(
        completion_ids=np.arange(len(versions), dtype=np.int32),
        logprobs=np.full(len(versions), -1.0, np.float32),
        versions=np.array(versions, np.int32),
        finish_reason=finish_reason,
        text=text,
    )


def reward(total: float | None, *, error: str | None = None) -> RolloutReward:
    return RolloutReward(total=total, by_function={"f": total}, error=error)


def scored(group: AdmittedGroup, *rollouts: Rollout, totals: Sequence[float | None] | None = None) -> ScoredGroup:
    """Two rollouts of one token of the admission's version, unless others are given."""
    chosen = rollouts or (rollout(group.version), rollout(group.version))
    values = totals if totals is not None else [float(index % 2) for index in range(len(chosen))]
    return ScoredGroup(group=group, rollouts=chosen, rewards=tuple(reward(total) for total in values))
