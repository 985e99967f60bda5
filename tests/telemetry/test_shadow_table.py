import io
import json

from rich.console import Console
from telemetry.small_events import ledger, step_finished

from headrace.telemetry.closing_report import closing_report
from headrace.telemetry.events import RunFinished
from headrace.telemetry.summary import SummaryBuilder

FIRST = {"shadow/applied/kept": 1.0, "shadow/applied/gradient_cosine": 1.0, "shadow/grpo/kept": 0.5, "shadow/grpo/ess": 0.25}
SECOND = {
    "shadow/applied/kept": 0.5,
    "shadow/grpo/kept": 0.75,
    "shadow/grpo/gradient_cosine": 0.5,
    "shadow/grpo/gradient_cosine/staleness_0": 0.75,
    "shadow/grpo/gradient_cosine/staleness_2": -0.25,
    "shadow/grpo/kept/staleness_2": 0.5,
}


def summary_of(*metrics):
    builder = SummaryBuilder()
    for version, of_step in enumerate(metrics, start=1):
        # As a resumed run does it.
        builder = SummaryBuilder(json.loads(json.dumps(builder.state())))
        builder.handle(1.0, step_finished(version, metrics=of_step))
    builder.handle(2.0, RunFinished(version=len(metrics), interrupted=False, ledger=ledger()))
    return builder.summary()


def printed(summary):
    console = Console(file=io.StringIO(), width=80)
    console.print(closing_report(summary, {}))
    return console.file.getvalue()


def test_means_are_over_the_steps_that_have_a_metric():
    assert summary_of(FIRST, SECOND)["shadow"] == {
        "applied": {"steps": 2, "kept": 0.75, "gradient_cosine": 1.0},
        "grpo": {
            "steps": 2,
            "kept": 0.625,
            "ess": 0.25,
            "gradient_cosine": 0.5,
            "gradient_cosine/staleness_0": 0.75,
            "gradient_cosine/staleness_2": -0.25,
            "kept/staleness_2": 0.5,
        },
    }


def test_the_table_has_a_line_for_each_algorithm():
    lines = [line.split() for line in printed(summary_of(FIRST, SECOND)).splitlines()]
    assert ["algorithm", "steps", "kept", "ess", "clipped", "cosine", "cosine", "0", "cosine", "2"] in lines
    assert ["applied", "2", "75.0", "%", "-", "-", "1.000", "-", "-"] in lines
    assert ["grpo", "2", "62.5", "%", "0.250", "-", "0.500", "0.750", "-0.250"] in lines


def test_algorithms_that_a_resumed_run_compares_anew_are_told_by_their_steps():
    other = {"shadow/applied/kept": 0.75, "shadow/areal/kept": 0.5, "shadow/areal/ess": 0.75}
    summary = summary_of(FIRST, SECOND, other)
    assert {label: of["steps"] for label, of in summary["shadow"].items()} == {"applied": 3, "grpo": 2, "areal": 1}
    lines = [line.split() for line in printed(summary).splitlines()]
    assert ["areal", "1", "50.0", "%", "0.750", "-", "-", "-", "-"] in lines


def test_nothing_is_said_where_nothing_was_compared():
    summary = summary_of({"loss": 1.0})
    assert "shadow" not in summary
    assert "other algorithms" not in printed(summary)
