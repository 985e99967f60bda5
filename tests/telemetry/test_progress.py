import io
from pathlib import Path

import pytest
from rich.console import Console
from telemetry.small_events import engine, equal_group, evaluation, ledger, mixed_group, step_finished

from headrace.telemetry.events import CheckpointSaved, GroupAdmitted, GroupDiscarded, GroupReady, RunFinished, RunStarted
from headrace.telemetry.progress import ProgressView
from headrace.telemetry.summary import SummaryBuilder

STARTED = RunStarted(version=0, last_version=20, slots=4, max_staleness=1, prompts_per_step=2)
FINISHED = RunFinished(version=2, interrupted=False, ledger=ledger())
BEFORE = evaluation(0, 0.25, answers=[(5, "a wrong answer", 0.0)])
AFTER = evaluation(2, 0.75, answers=[(5, "a right answer", 1.0)])
STEPS = [step_finished(1, stats=engine(generated=4000, busy=3.0)), step_finished(2, stats=engine(generated=8000, busy=7.0))]


def shown(events, *, terminal=False, width=110, places=None):
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=width, color_system=None)
    summary = SummaryBuilder()
    view = ProgressView(console, title="a run", summary=summary, places=places or {})
    for number, event in enumerate(events):
        summary.handle(10.0 * number, event)
        view.handle(10.0 * number, event)
    view.close()
    return output.getvalue()


def test_without_a_terminal_each_step_and_evaluation_is_one_ascii_line():
    events = [STARTED, GroupAdmitted(group_id=0, epoch=0, row=0, version=0, deadline=1), BEFORE, *STEPS]
    events.append(CheckpointSaved(version=2, folder=Path("runs/x/checkpoint-2"), seconds=1.5))
    output = shown(events, width=40)
    assert output.splitlines() == [
        "start at step 0 of 20: 2 groups a step, 4 slots, max staleness 1",
        "evaluation at step 0: eval/reward 0.25  eval/mean_length 3  (2.0 s)",
        "step 1/20  reward 0.500  length 2  staleness 0.00 (max 0)  tokens/s 1k generated, 0.75 trained  "
        "waited trainer 25 %, engine 25 %  4.0 s  ETA 1 min 16 s",
        "step 2/20  reward 0.500  length 2  staleness 1.00 (max 1)  tokens/s 1k generated, 0.75 trained  "
        "waited trainer 25 %, engine 0 %  4.0 s  ETA 1 min 12 s",
        "checkpoint of step 2: runs/x/checkpoint-2 (1.5 s)",
    ]
    assert output.isascii()


def test_the_end_shows_before_and_after_on_the_same_prompts_and_where_things_lie(tmp_path):
    metrics = tmp_path.joinpath(*["long"] * 30, "metrics.jsonl")
    metrics.parent.mkdir(parents=True)
    metrics.touch()
    places = {"metrics": metrics, "model": tmp_path / "not written"}
    output = shown([STARTED, BEFORE, *STEPS, AFTER, FINISHED], places=places)
    assert "finished after 2 steps in 50.0 s" in output
    assert "0.250 before, 0.750 after (+0.500)" in output
    assert "worst 1, mean 0.50" in output
    assert "question 5" in output
    assert "[reward 0] a wrong answer" in output
    assert "[reward 1] a right answer" in output
    assert str(metrics) in output
    assert "not written" not in output


def test_a_run_that_broke_claims_nothing():
    output = shown([STARTED, BEFORE, *STEPS])
    assert "finished" not in output
    assert "interrupted" not in output


def test_an_interrupted_run_says_so():
    assert "interrupted after 2 steps" in shown([STARTED, *STEPS, RunFinished(version=2, interrupted=True, ledger=ledger())])


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_without_learning_signal_says_so_once(terminal):
    silent = [step_finished(version, [equal_group()]) for version in range(1, 16)]
    output = shown([STARTED, *silent, FINISHED], terminal=terminal, width=600)
    assert output.count("warning: no learning signal: in the last 10 steps") == 1


def test_the_first_failing_reward_is_shown_and_the_rest_counted():
    ready = [GroupReady(group_id=number, mean_reward=0.5, num_failed=2, error=f"judge: [red] error {number}") for number in (1, 2)]
    discarded = GroupDiscarded(group_id=3, reason="reward_failed", detail="judge: error 3")
    output = shown([STARTED, *ready, discarded, step_finished(1, books=ledger(discarded={"reward_failed": 1}))])
    assert "judge: [red] error 1" in output
    assert "error 2" not in output
    assert "error 3" not in output
    assert "discarded 1  failed rewards 4" in output


def test_skipped_updates_are_shown():
    assert "step 1 skipped 2 updates" in shown([STARTED, step_finished(1, skipped_updates=2)])


def test_the_live_view_shows_the_run():
    ready = GroupReady(group_id=9, mean_reward=0.5, num_failed=0, error=None)
    output = shown([STARTED, BEFORE, *STEPS, AFTER, ready], terminal=True)
    last_view = output[output.rindex("a run") :]
    for expected in (
        "step 2/20",
        "0.500",
        "from 0.250 at step 0",
        "mean 1.00   max 1",
        "limit 1",
        "generated 1k",
        "ETA 1 min 1",
        "ready 1",
    ):
        assert expected in last_view
    assert "trained 4   discarded 0" in last_view


def test_a_run_without_a_known_last_step():
    started = RunStarted(version=4, last_version=None, slots=4, max_staleness=1, prompts_per_step=2)
    step = step_finished(5, [mixed_group()])
    assert "step 5  reward" in shown([started, step])
    assert "ETA" not in shown([started, step], terminal=True)
