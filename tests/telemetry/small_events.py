"""Small events with few, readable arguments."""

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.telemetry.events import EvaluationFinished, StepFinished, StepTimings, TrainedGroup
from headrace.types import AdmittedGroup, EngineStats, Ledger, Prompt, Rollout, RolloutReward, ScoredGroup, StepReport


def prompt(row: int = 0, text: object = "2+2=") -> Prompt:
    return Prompt(row=row, epoch=0, token_ids=(1, 2), text=text)


def rollout(versions: Sequence[int], *, text: str = "4", finish_reason: str = "stop") -> Rollout:
    length = len(versions)
    return Rollout(
        completion_ids=np.arange(length, dtype=np.int32),
        logprobs=np.full(length, -0.5, dtype=np.float32),
        versions=np.array(versions, dtype=np.int32),
        finish_reason=finish_reason,
        text=text,
    )


def reward(total: float | None, *, error: str | None = None, **by_function: float | None) -> RolloutReward:
    return RolloutReward(total=total, by_function=by_function, error=error)


def trained_group(
    group_id: int, rollouts: Sequence[Rollout], rewards: Sequence[RolloutReward], advantages: Sequence[float | None] | None = None
) -> TrainedGroup:
    group = AdmittedGroup(group_id=group_id, prompt=prompt(row=group_id), version=0, deadline=2)
    if advantages is None:
        advantages = [None if each.total is None else 0.0 for each in rewards]
    of_tokens = [
        None if advantage is None else np.full(len(each.versions), advantage, np.float32)
        for each, advantage in zip(rollouts, advantages, strict=True)
    ]
    return TrainedGroup(scored=ScoredGroup(group=group, rollouts=tuple(rollouts), rewards=tuple(rewards)), advantages=of_tokens)


def equal_group(group_id: int = 0, value: float = 0.0) -> TrainedGroup:
    """Two rollouts with the same reward."""
    return trained_group(group_id, [rollout([0]), rollout([0, 0])], [reward(value, right=value), reward(value, right=value)])


def mixed_group(group_id: int = 0) -> TrainedGroup:
    """Two rollouts, one right."""
    return trained_group(group_id, [rollout([0]), rollout([0, 0])], [reward(1.0, right=1.0), reward(0.0, right=0.0)], [0.7, -0.7])


def ledger(*, discarded: Mapping[str, int] | None = None, trained_tokens: int = 0) -> Ledger:
    discarded = discarded or {}
    return Ledger(
        admitted=9 + sum(discarded.values()),
        in_flight=3,
        ready=2,
        trained=4,
        discarded=discarded,
        ready_tokens=20,
        trained_tokens=trained_tokens,
        discarded_tokens=0,
    )


def engine(*, generated: int = 0, busy: float = 0.0, loading: float = 0.0, interruptions: int = 0) -> EngineStats:
    return EngineStats(
        generated_tokens=generated, prefilled_tokens=0, busy_seconds=busy, loading_seconds=loading, interruptions=interruptions
    )


def timings(*, waiting: float = 1.0, computing: float = 2.0, publishing: float = 0.5, other: float = 0.5) -> StepTimings:
    return StepTimings(waiting_for_groups=waiting, computing=computing, publishing=publishing, other=other)


def step_finished(
    version: int,
    groups: Sequence[TrainedGroup] | None = None,
    *,
    metrics: Mapping[str, float] | None = None,
    num_loss_tokens: int = 3,
    skipped_updates: int = 0,
    books: Ledger | None = None,
    spent: StepTimings | None = None,
    stats: EngineStats | None = None,
) -> StepFinished:
    groups = [mixed_group()] if groups is None else groups
    return StepFinished(
        trained_at=version - 1,
        report=StepReport(
            version=version,
            skipped_updates=skipped_updates,
            num_samples=sum(len(each.scored.rollouts) for each in groups),
            num_loss_tokens=num_loss_tokens,
            metrics=metrics or {},
        ),
        groups=groups,
        ledger=books or ledger(),
        timings=spent or timings(),
        engine=stats or engine(),
    )


def evaluation(
    version: int, accuracy: float, *, answers: Sequence[tuple[int, str, float]] = (), seconds: float = 2.0
) -> EvaluationFinished:
    """`answers` are (row, completion, reward)."""
    return EvaluationFinished(
        version=version,
        metrics={"eval/reward": accuracy, "eval/mean_length": 3.0},
        answers=[(prompt(row=row, text=f"question {row}"), rollout([version], text=text), reward(value)) for row, text, value in answers],
        seconds=seconds,
    )
