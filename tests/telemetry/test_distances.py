from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from telemetry.small_events import equal_group, reward, rollout, step_finished, trained_group

from headrace.telemetry.closing_report import closing_report
from headrace.telemetry.distances import distance_metrics
from headrace.telemetry.events import TrainedGroup
from headrace.telemetry.learning_signal import SignalWatch
from headrace.telemetry.metrics import step_metrics
from headrace.telemetry.progress import plain_line
from headrace.telemetry.run_status import RunStatus
from headrace.telemetry.samples import SamplesWriter
from headrace.telemetry.summary import SummaryBuilder
from headrace.types import Floats


def of_tokens(*values: list[float]) -> tuple[Floats, ...]:
    return tuple(np.array(each, np.float32) for each in values)


def distilled(group_id: int = 0, *, seconds: float = 0.0, version: int | None = None) -> TrainedGroup:
    """Two rollouts of one and two tokens sampled with log-probability -0.5, without rewards."""
    nothing = reward(None)
    group = trained_group(group_id, [rollout([0]), rollout([0, 0])], [nothing, nothing], [-1.0, -0.25])
    teacher = of_tokens([-1.5], [-0.5, -1.0])
    return replace(group, scored=replace(group.scored, teacher_logprobs=teacher, teacher_version=version, scoring_seconds=seconds))


def test_the_reverse_kl_is_the_mean_over_tokens_by_hand() -> None:
    metrics = distance_metrics(step_finished(1, groups=[distilled()]))
    assert metrics["distillation/reverse_kl"] == pytest.approx((1.0 + 0.0 + 0.5) / 3)
    assert "reference_kl" not in metrics
    assert "distillation/teacher_version" not in metrics


def test_rollouts_that_take_no_part_are_left_out() -> None:
    group = distilled()
    group = replace(group, advantages=[None, group.advantages[1]])
    assert distance_metrics(step_finished(1, groups=[group]))["distillation/reverse_kl"] == pytest.approx(0.25)


def test_the_distance_to_the_reference_is_reported_likewise() -> None:
    group = equal_group()
    group = replace(group, scored=replace(group.scored, reference_logprobs=of_tokens([-0.6], [-0.6, -0.9])))
    metrics = distance_metrics(step_finished(1, groups=[group]))
    assert metrics["reference_kl"] == pytest.approx((0.1 + 0.1 + 0.4) / 3)
    assert "distillation/reverse_kl" not in metrics


def test_the_share_of_time_and_the_snapshots_version_are_reported() -> None:
    event = step_finished(1, groups=[distilled(0, seconds=1.0, version=3), distilled(1, seconds=0.5, version=6)])
    metrics = distance_metrics(event)
    assert metrics["scoring_share"] == pytest.approx(1.5 / event.timings.total)
    assert metrics["distillation/teacher_version"] == 4.5


def test_nothing_is_reported_without_another_policy() -> None:
    assert distance_metrics(step_finished(1, groups=[equal_group()])) == {}


def test_a_step_without_rewards_has_signal_from_its_teacher() -> None:
    metrics = step_metrics(step_finished(1, groups=[distilled()]), None)
    assert "reward" not in metrics
    watch = SignalWatch(patience=1)
    assert (watch.after_step(metrics), watch.at_end()) == (None, None)
    silent = step_metrics(step_finished(1, groups=[equal_group()]), None)
    assert "no learning signal" in (SignalWatch(patience=1).after_step(silent) or "")


def test_a_steps_line_shows_the_distance_in_place_of_a_reward() -> None:
    status, event = RunStatus(), step_finished(1, groups=[distilled()])
    status.observe(1.0, event)
    line = plain_line(event, status)
    assert line is not None
    assert "reverse KL 0.5000" in line
    assert "reward" not in line


def test_the_summary_keeps_the_first_and_the_last_distance_across_a_resume() -> None:
    first = SummaryBuilder()
    first.handle(1.0, step_finished(1, groups=[distilled()]))
    second = SummaryBuilder(first.state())
    nearer = distilled()
    nearer = replace(nearer, scored=replace(nearer.scored, teacher_logprobs=of_tokens([-0.5], [-0.5, -0.8])))
    second.handle(2.0, step_finished(2, groups=[nearer]))
    summary = second.summary()
    assert (summary["reverse_kl_first"], summary["reverse_kl_last"]) == (pytest.approx(0.5), pytest.approx(0.1))
    assert closing_report(summary, {}) is not None
    without = SummaryBuilder()
    without.handle(1.0, step_finished(1, groups=[equal_group()]))
    assert without.summary()["reverse_kl_first"] is None


def test_samples_tell_each_rollouts_distance_and_the_teachers_version(tmp_path) -> None:
    SamplesWriter(tmp_path).handle(1.0, step_finished(1, groups=[distilled(version=6), equal_group(1)]))
    rows = pq.read_table(tmp_path / "step_000001.parquet").to_pylist()
    assert [row["reverse_kl"] for row in rows] == [pytest.approx(1.0), pytest.approx(0.25), None, None]
    assert [row["teacher_version"] for row in rows] == [6, 6, None, None]
