"""A step's events as numbers, under the names that users of the field know."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.telemetry.distances import distance_metrics
from headrace.telemetry.events import EvaluationFinished, Event, StepFinished
from headrace.types import EngineStats, Floats, Rollout, RolloutReward

_UNUSED_ENGINE = EngineStats(generated_tokens=0, prefilled_tokens=0, busy_seconds=0.0, loading_seconds=0.0, interruptions=0)


def step_metrics(event: StepFinished, previous: StepFinished | None) -> dict[str, float]:
    """Compute a step's metrics. A value that is not defined (a mean of nothing, NaN, infinity) is left out.

    Rates and shares are over the step's wall time, `event.timings.total`. Standard deviations are of samples
    (divided by n - 1). `reward` is the weighted reward that training uses; `rewards/<function>/…` are unweighted.

    Args:
        event: The step.
        previous: The step before it under the same engines, or None for the first one after they started: the engines'
            totals are then counted from zero.

    Returns:
        Finite values by name: what the trainer reported, and
        `reward`, `reward_std` (mean over groups of the deviation inside the group), `frac_reward_zero_std`,
        `advantage_share` (tokens with an advantage other than 0 among those of rollouts that took part; before a critic has its say),
        `rewards/<function>/mean|std`, `reward_failures` (rollouts whose reward failed),
        `completions/mean_length|min_length|max_length|clipped_ratio|mean_terminated_length` in tokens,
        `staleness/mean|max` over the tokens trained on, `num_tokens` (trained on since the run began),
        `discarded/<reason>` (groups since the run began), `skipped_updates`,
        `time/…` in seconds, `tokens_per_second/generated|trained`, `wait_share/trainer|engine`,
        `engine/loading_share`, `engine/interruptions`, `groups/in_flight|ready`, and those of `distance_metrics`.
    """
    metrics = {
        **event.report.metrics,
        **_reward_metrics(event),
        **_advantage_metrics(event),
        **distance_metrics(event),
        **_completion_metrics(event),
        **_staleness_metrics(event),
        **_ledger_metrics(event),
        **_time_metrics(event),
        **_engine_metrics(event, previous),
    }
    return finite(metrics)


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Keep what can be drawn and averaged: no NaN, no infinity."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


class MetricRows:
    """Turns the events that carry metrics into rows, remembering the step before."""

    def __init__(self) -> None:
        self._previous: StepFinished | None = None

    def row(self, event: Event) -> tuple[int, dict[str, float]] | None:
        """The step and the metrics of a training step or an evaluation; None for any other event."""
        match event:
            case StepFinished():
                metrics = step_metrics(event, self._previous)
                self._previous = event
                return event.report.version, metrics
            case EvaluationFinished():
                return event.version, finite({**event.metrics, "time/evaluation": event.seconds})
            case _:
                return None


def rollouts_of(event: StepFinished) -> Iterator[tuple[Rollout, RolloutReward, Floats | None]]:
    """Every rollout of the step with its reward and its tokens' advantages (None: it took no part)."""
    for trained in event.groups:
        yield from zip(trained.scored.rollouts, trained.scored.rewards, trained.advantages, strict=True)


def token_staleness(event: StepFinished) -> np.ndarray:
    """Staleness of every token trained on, int array of [tokens]."""
    trained = [event.trained_at - rollout.versions for rollout, _, advantages in rollouts_of(event) if advantages is not None]
    return np.concatenate(trained) if trained else np.empty(0, dtype=np.int32)


def engine_since(event: StepFinished, previous: StepFinished | None) -> EngineStats:
    """What the engines did since the step before (since they started, without one)."""
    now, before = event.engine, previous.engine if previous else _UNUSED_ENGINE
    return EngineStats(
        generated_tokens=now.generated_tokens - before.generated_tokens,
        prefilled_tokens=now.prefilled_tokens - before.prefilled_tokens,
        busy_seconds=now.busy_seconds - before.busy_seconds,
        loading_seconds=now.loading_seconds - before.loading_seconds,
        interruptions=now.interruptions - before.interruptions,
    )


def _reward_metrics(event: StepFinished) -> dict[str, float]:
    by_group = [_present([reward.total for reward in trained.scored.rewards]) for trained in event.groups]
    scored = [group for group in by_group if group]
    rewards = [reward for _, reward, _ in rollouts_of(event)]
    names = sorted({name for reward in rewards for name in reward.by_function})
    metrics = {
        "reward": _mean([value for group in scored for value in group]),
        "reward_std": _mean([_std(group) for group in scored if len(group) > 1]),
        "frac_reward_zero_std": _mean([float(max(group) == min(group)) for group in scored]),
        "reward_failures": sum(reward.error is not None for reward in rewards),
    }
    for name in names:
        values = _present([reward.by_function.get(name) for reward in rewards])
        metrics |= {f"rewards/{name}/mean": _mean(values), f"rewards/{name}/std": _std(values)}
    return metrics


def _advantage_metrics(event: StepFinished) -> dict[str, float]:
    present = [advantages for _, _, advantages in rollouts_of(event) if advantages is not None]
    return {"advantage_share": float(np.count_nonzero(np.concatenate(present)) / sum(map(len, present)))} if present else {}


def _completion_metrics(event: StepFinished) -> dict[str, float]:
    rollouts = [rollout for rollout, _, _ in rollouts_of(event)]
    lengths = [len(rollout.completion_ids) for rollout in rollouts]
    return {
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths, default=math.nan),
        "completions/max_length": max(lengths, default=math.nan),
        "completions/clipped_ratio": _mean([rollout.finish_reason == "length" for rollout in rollouts]),
        "completions/mean_terminated_length": _mean([len(r.completion_ids) for r in rollouts if r.finish_reason == "stop"]),
    }


def _staleness_metrics(event: StepFinished) -> dict[str, float]:
    staleness = token_staleness(event)
    if not staleness.size:
        return {}
    return {"staleness/mean": float(staleness.mean()), "staleness/max": float(staleness.max())}


def _ledger_metrics(event: StepFinished) -> dict[str, float]:
    ledger = event.ledger
    return {
        "num_tokens": ledger.trained_tokens,
        "skipped_updates": event.report.skipped_updates,
        "groups/in_flight": ledger.in_flight,
        "groups/ready": ledger.ready,
        **{f"discarded/{reason}": count for reason, count in ledger.discarded.items()},
    }


def _time_metrics(event: StepFinished) -> dict[str, float]:
    timings = event.timings
    return {
        "time/step": timings.total,
        "time/waiting_for_groups": timings.waiting_for_groups,
        "time/computing": timings.computing,
        "time/publishing": timings.publishing,
        "time/other": timings.other,
        "wait_share/trainer": _ratio(timings.waiting_for_groups, timings.total),
        "tokens_per_second/trained": _ratio(event.report.num_loss_tokens, timings.total),
    }


def _engine_metrics(event: StepFinished, previous: StepFinished | None) -> dict[str, float]:
    engine, wall = engine_since(event, previous), event.timings.total
    idle = 1.0 - _ratio(engine.busy_seconds + engine.loading_seconds, wall)
    return {
        "tokens_per_second/generated": _ratio(engine.generated_tokens, wall),
        # A decode step that ends in this step may have begun in the one before, so the share can pass 0 by a little.
        "wait_share/engine": max(idle, 0.0) if math.isfinite(idle) else idle,
        "engine/loading_share": _ratio(engine.loading_seconds, wall),
        "engine/interruptions": engine.interruptions,
    }


def _present(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
