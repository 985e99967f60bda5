import io

from rich.console import Console
from telemetry.small_events import evaluation, ledger, step_finished

from headrace.telemetry.closing_report import closing_report
from headrace.telemetry.events import RunFinished
from headrace.telemetry.summary import SummaryBuilder


def report(*events):
    summary = SummaryBuilder()
    for event in events:
        summary.handle(1.0, event)
    console = Console(file=io.StringIO(), width=100)
    console.print(closing_report(summary.summary(), {}))
    return console.file.getvalue()


def finished(**discarded):
    return RunFinished(version=1, interrupted=False, ledger=ledger(discarded=discarded))


def test_trouble_is_listed_only_when_there_was_some():
    assert "no_reward" not in report(step_finished(1), finished())
    troubled = report(step_finished(1, skipped_updates=2), finished(no_reward=3))
    assert "3 groups (no_reward)" in troubled
    assert "2 updates: the loss or a gradient was not finite" in troubled


def test_a_run_without_evaluations_or_steps_can_be_reported():
    output = report(finished())
    assert "no evaluation" in output
    assert "tokens/s" not in output


def test_long_completions_keep_their_end():
    long = "word " * 300 + "answer 42"
    output = report(
        evaluation(0, 0.0, answers=[(1, long, 0.0)]), step_finished(1), evaluation(1, 1.0, answers=[(1, "42", 1.0)]), finished()
    )
    assert "answer 42" in output
    assert "..." in output
    assert output.count("word") < 100
