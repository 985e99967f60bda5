"""How far the policy is from those that its rollouts are compared with, as metrics."""

from collections.abc import Iterator

import numpy as np

from headrace.telemetry.events import StepFinished, TrainedGroup
from headrace.types import Floats

REVERSE_KL = "distillation/reverse_kl"


def distance_metrics(event: StepFinished) -> dict[str, float]:
    """Distances of the tokens trained on, as their sampler saw them; none without a teacher or a reference.

    Returns:
        `distillation/reverse_kl` and `reference_kl`: the mean over tokens of log π_behave - log π_teacher and of log π_behave -
        log π_reference, estimates of KL(π_behave ‖ π_teacher) and KL(π_behave ‖ π_reference) in nats a token;
        `distillation/teacher_version`: mean over the groups, of a teacher that is a snapshot of the policy;
        `scoring_share`: the time that scoring the step's groups took, over the step's wall time (above 1 when several are scored at once).
    """
    teacher = [gap for group in event.groups for gap in reverse_kl(group, group.scored.teacher_logprobs) if gap is not None]
    reference = [gap for group in event.groups for gap in reverse_kl(group, group.scored.reference_logprobs) if gap is not None]
    versions = [group.scored.teacher_version for group in event.groups if group.scored.teacher_version is not None]
    metrics: dict[str, float] = {}
    if teacher:
        metrics[REVERSE_KL] = float(np.concatenate(teacher).mean(dtype=np.float64))
    if reference:
        metrics["reference_kl"] = float(np.concatenate(reference).mean(dtype=np.float64))
    if versions:
        metrics["distillation/teacher_version"] = float(np.mean(versions))
    if (teacher or reference) and event.timings.total > 0:
        metrics["scoring_share"] = sum(group.scored.scoring_seconds for group in event.groups) / event.timings.total
    return metrics


def reverse_kl(group: TrainedGroup, logprobs: tuple[Floats, ...] | None) -> Iterator[Floats | None]:
    """Log π_behave - log π_other of each rollout's tokens; None for a rollout that took no part, or without another policy."""
    for index, (rollout, advantages) in enumerate(zip(group.scored.rollouts, group.advantages, strict=True)):
        yield None if advantages is None or logprobs is None else rollout.logprobs - logprobs[index]
