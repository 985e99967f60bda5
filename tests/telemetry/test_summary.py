import json

import pytest
from telemetry.small_events import (
    engine,
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
from headrace.telemetry.summary import SummaryBuilder

FAILED = trained_group(1, [rollout([0, 1, 1]), rollout([1])], [reward(1.0), reward(None, error="judge: TimeoutError")], [1.0, None])
FIRST = step_finished(
    1, [mixed_group()], metrics={"mismatch_kl": 0.25}, num_loss_tokens=3, stats=engine(generated=40, busy=3.0, interruptions=1)
)
SECOND = step_finished(
    2,
    [FAILED],
    metrics={"mismatch_kl": 0.75},
    num_loss_tokens=3,
    skipped_updates=1,
    spent=timings(waiting=3.0, computing=1.0, publishing=0.0, other=0.0),
    stats=engine(generated=60, busy=5.0, loading=1.0, interruptions=4),
)
BEFORE = evaluation(0, 0.25, answers=[(5, "no", 0.0), (5, "no, again", 0.0), (8, "yes", 1.0)])
AFTER = evaluation(2, 0.75, answers=[(5, "yes", 1.0), (5, "no", 0.0), (8, "yes", 1.0)])
END = RunFinished(version=2, interrupted=False, ledger=ledger(discarded={"no_reward": 1}))


def summary_of(*events, state=None):
    builder = SummaryBuilder(state)
    for number, event in enumerate(events, start=1):
        builder.handle(10.0 * number, event)
    return builder


def test_a_run_added_up_by_hand():
    summary = summary_of(BEFORE, FIRST, SECOND, AFTER, END).summary()
    assert (summary["finished"], summary["interrupted"], summary["steps"]) == (True, False, 2)
    assert (summary["accuracy_before"], summary["accuracy_after"]) == (0.25, 0.75)
    assert summary["evaluation_after"] == {"version": 2, "eval/reward": 0.75, "eval/mean_length": 3.0}
    assert summary["wall_seconds"] == 50.0
    assert (summary["tokens_generated"], summary["tokens_trained"]) == (60, 6)
    # Two steps of 4 s.
    assert (summary["tokens_per_second_generated"], summary["tokens_per_second_trained"]) == (7.5, 0.75)
    assert summary["trainer_wait_share"] == 0.5
    assert summary["engine_wait_share"] == 0.25
    # Step 1 trains three tokens of age 0; step 2, at version 1, tokens of ages 1, 0, 0.
    assert (summary["worst_staleness"], summary["mean_staleness"]) == (1, pytest.approx(1 / 6))
    assert summary["mean_mismatch_kl"] == 0.5
    assert (summary["skipped_updates"], summary["reward_failures"], summary["interruptions"]) == (1, 1, 4)
    assert summary["ledger"]["discarded"] == {"no_reward": 1}
    assert summary["peak_resident_bytes"] > 5e6


def test_examples_are_the_first_answers_to_the_same_prompts():
    first, second = summary_of(BEFORE, FIRST, AFTER).summary()["examples"]
    assert first == {
        "row": 5,
        "prompt": "question 5",
        "before": {"completion": "no", "reward": 0.0},
        "after": {"completion": "yes", "reward": 1.0},
    }
    assert second["row"] == 8


def test_a_resumed_run_adds_to_what_the_checkpoint_knew():
    saved = json.loads(json.dumps(summary_of(BEFORE, FIRST).state()))
    resumed = SummaryBuilder(saved)
    new_engine = step_finished(
        2, [FAILED], metrics={"mismatch_kl": 0.75}, stats=engine(generated=20, busy=3.0, interruptions=3), skipped_updates=1
    )
    for time, event in ((30.0, new_engine), (40.0, AFTER), (50.0, END)):
        resumed.handle(time, event)
    summary, straight = resumed.summary(), summary_of(BEFORE, FIRST, SECOND, AFTER, END).summary()
    same = ("steps", "wall_seconds", "tokens_generated", "tokens_trained", "accuracy_before", "accuracy_after", "interruptions")
    assert {name: summary[name] for name in same} == {name: straight[name] for name in same}
    assert summary["examples"] == straight["examples"]
    assert summary["mean_mismatch_kl"] == straight["mean_mismatch_kl"]
    assert summary["mean_staleness"] == straight["mean_staleness"]


def test_interrupted_and_broken_runs_are_told_apart():
    interrupted = summary_of(FIRST, RunFinished(version=1, interrupted=True, ledger=ledger())).summary()
    assert (interrupted["finished"], interrupted["interrupted"]) == (False, True)
    broken = summary_of(FIRST).summary()
    assert (broken["finished"], broken["interrupted"]) == (False, False)


def test_a_run_that_ended_before_its_first_step_can_be_written(tmp_path):
    builder = summary_of()
    builder.write(tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == builder.summary()
    assert (written["steps"], written["accuracy_before"], written["tokens_per_second_trained"]) == (0, None, None)
