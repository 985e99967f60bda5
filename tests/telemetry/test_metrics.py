import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry.small_events import (
    engine,
    equal_group,
    evaluation,
    ledger,
    mixed_group,
    reward,
    rollout,
    step_finished,
    timings,
    trained_group,
)

from headrace.telemetry.events import RunFinished
from headrace.telemetry.metrics import MetricRows, step_metrics


def test_logged_reward_is_weighted_and_each_function_is_not():
    rewards = [reward(0.7, right=1.0, short=0.0), reward(0.3, right=0.0, short=1.0)]
    metrics = step_metrics(step_finished(1, [trained_group(0, [rollout([0]), rollout([0])], rewards)]), None)
    assert metrics["reward"] == pytest.approx(0.5)
    assert metrics["rewards/right/mean"] == pytest.approx(0.5)
    assert metrics["rewards/short/mean"] == pytest.approx(0.5)
    assert metrics["rewards/right/std"] == pytest.approx(math.sqrt(0.5))


def test_reward_std_is_the_mean_over_groups():
    # Inside the groups: [1, 0] has sqrt(1/2), [0, 0] has 0.
    metrics = step_metrics(step_finished(1, [mixed_group(0), equal_group(1)]), None)
    assert metrics["reward_std"] == pytest.approx(math.sqrt(0.5) / 2)
    assert metrics["frac_reward_zero_std"] == 0.5
    assert metrics["reward"] == 0.25


def test_missing_rewards_are_left_out_everywhere():
    rewards = [reward(1.0, right=1.0, judge=None), reward(None, right=None, judge=None, error="right: ValueError")]
    metrics = step_metrics(step_finished(1, [trained_group(0, [rollout([0]), rollout([0])], rewards)]), None)
    assert metrics["reward"] == 1.0
    assert metrics["rewards/right/mean"] == 1.0
    assert metrics["reward_failures"] == 1
    assert metrics["frac_reward_zero_std"] == 1.0
    assert {"reward_std", "rewards/right/std", "rewards/judge/mean", "rewards/judge/std"}.isdisjoint(metrics)


def test_completion_lengths():
    rollouts = [rollout([0, 0]), rollout([0] * 4), rollout([0] * 9, finish_reason="length")]
    metrics = step_metrics(step_finished(1, [trained_group(0, rollouts, [reward(0.0)] * 3)]), None)
    assert metrics["completions/mean_length"] == 5
    assert metrics["completions/min_length"] == 2
    assert metrics["completions/max_length"] == 9
    assert metrics["completions/clipped_ratio"] == pytest.approx(1 / 3)
    assert metrics["completions/mean_terminated_length"] == 3


def test_mean_terminated_length_is_absent_when_every_completion_was_cut_off():
    group = trained_group(0, [rollout([0], finish_reason="length")] * 2, [reward(0.0)] * 2)
    assert "completions/mean_terminated_length" not in step_metrics(step_finished(1, [group]), None)


def test_staleness_counts_tokens_that_were_trained_on():
    # Trained at version 4: token ages 2, 1, 0 and 0; the rollout without an advantage (age 4) takes no part.
    rollouts = [rollout([2, 3, 4]), rollout([4]), rollout([0])]
    group = trained_group(0, rollouts, [reward(1.0), reward(0.0), reward(None)], [0.7, -0.7, None])
    metrics = step_metrics(step_finished(5, [group]), None)
    assert metrics["staleness/mean"] == 0.75
    assert metrics["staleness/max"] == 2


def test_trainer_metrics_and_books():
    books = ledger(discarded={"no_reward": 2}, trained_tokens=70)
    metrics = step_metrics(step_finished(1, metrics={"loss": 0.5, "clip_ratio/low_mean": 0.1}, books=books, skipped_updates=1), None)
    assert (metrics["loss"], metrics["clip_ratio/low_mean"]) == (0.5, 0.1)
    assert metrics["discarded/no_reward"] == 2
    assert (metrics["num_tokens"], metrics["groups/in_flight"], metrics["groups/ready"]) == (70, 3, 2)
    assert metrics["skipped_updates"] == 1


def test_times_and_rates_are_over_the_step():
    before = step_finished(1, stats=engine(generated=100, busy=3.0, loading=1.0, interruptions=2))
    after = step_finished(
        2,
        num_loss_tokens=20,
        spent=timings(waiting=1.0, computing=2.0, publishing=0.5, other=0.5),
        stats=engine(generated=180, busy=5.0, loading=2.0, interruptions=5),
    )
    metrics = step_metrics(after, before)
    assert metrics["time/step"] == 4.0
    assert metrics["wait_share/trainer"] == 0.25
    assert metrics["wait_share/engine"] == pytest.approx(1 - 3 / 4)
    assert metrics["engine/loading_share"] == 0.25
    assert metrics["engine/interruptions"] == 3
    assert metrics["tokens_per_second/generated"] == 20
    assert metrics["tokens_per_second/trained"] == 5


def test_the_first_step_counts_the_engines_from_their_start():
    assert step_metrics(step_finished(1, stats=engine(generated=40)), None)["tokens_per_second/generated"] == 10


def test_no_rates_when_no_time_passed():
    instant = timings(waiting=0, computing=0, publishing=0, other=0)
    metrics = step_metrics(step_finished(1, spent=instant), None)
    assert {"tokens_per_second/trained", "tokens_per_second/generated", "wait_share/trainer", "wait_share/engine"}.isdisjoint(metrics)


@given(
    totals=st.lists(st.lists(st.none() | st.floats(-5, 5), min_size=1, max_size=3), min_size=0, max_size=3),
    loss=st.floats(),
    seconds=st.floats(0, 10),
)
def test_every_value_is_finite(totals, loss, seconds):
    groups = [trained_group(i, [rollout([0])] * len(each), [reward(t, f=t) for t in each]) for i, each in enumerate(totals)]
    spent = timings(waiting=seconds, computing=0, publishing=0, other=0)
    metrics = step_metrics(step_finished(1, groups, metrics={"loss": loss, "entropy": math.nan}, spent=spent), None)
    assert all(math.isfinite(value) and type(value) is float for value in metrics.values())
    scored = [total for each in totals for total in each if total is not None]
    assert ("reward" in metrics) == bool(scored)
    if scored:
        assert metrics["reward"] == pytest.approx(float(np.mean(scored)))


def test_the_share_of_tokens_with_an_advantage_is_of_what_took_part():
    """Three tokens of a group whose rewards differ, three of one whose rewards do not; a rollout without a reward counts nowhere."""
    left_out = trained_group(2, [rollout([0])], [reward(None)])
    assert step_metrics(step_finished(1, [mixed_group(0), equal_group(1), left_out]), None)["advantage_share"] == 0.5
    assert step_metrics(step_finished(1, [equal_group(0)]), None)["advantage_share"] == 0
    assert "advantage_share" not in step_metrics(step_finished(1, [left_out]), None)


def test_rows_remember_the_step_before_and_pass_evaluations_on():
    rows = MetricRows()
    rows.row(step_finished(1, stats=engine(generated=100)))
    assert rows.row(evaluation(1, 0.25)) == (1, {"eval/reward": 0.25, "eval/mean_length": 3.0, "time/evaluation": 2.0})
    step, metrics = rows.row(step_finished(2, stats=engine(generated=180)))
    assert (step, metrics["tokens_per_second/generated"]) == (2, 20)
    assert rows.row(RunFinished(version=2, interrupted=False, ledger=ledger())) is None
