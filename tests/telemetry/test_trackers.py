import pytest
from telemetry.small_events import evaluation, ledger, step_finished

from headrace.errors import UserError
from headrace.telemetry.events import RunFinished
from headrace.telemetry.trackers import TrackerSink, import_tracker


class ListTracker:
    """Keeps what it gets; fails on steps it is told to fail on."""

    def __init__(self, failing=()):
        self.logged = []
        self.failing = failing
        self.closed = False

    def log(self, step, metrics):
        if step in self.failing:
            raise ConnectionError("no route to host")
        self.logged.append((step, metrics))

    def close(self):
        self.closed = True
        if self.failing:
            raise ConnectionError("still no route")


def test_steps_and_evaluations_reach_the_tracker():
    tracker, warnings = ListTracker(), []
    sink = TrackerSink("lists", tracker, warn=warnings.append)
    for event in (evaluation(0, 0.5), step_finished(1, metrics={"loss": 2.0}), RunFinished(version=1, interrupted=False, ledger=ledger())):
        sink.handle(0.0, event)
    sink.close()
    assert [(step, metrics.get("loss")) for step, metrics in tracker.logged] == [(0, None), (1, 2.0)]
    assert tracker.closed
    assert warnings == []


def test_a_failing_tracker_warns_once_and_is_tried_again():
    tracker, warnings = ListTracker(failing=(1, 2)), []
    sink = TrackerSink("lists", tracker, warn=warnings.append)
    for version in (1, 2, 3):
        sink.handle(0.0, step_finished(version))
    sink.close()
    assert [step for step, _ in tracker.logged] == [3]
    assert warnings == ["lists failed (ConnectionError: no route to host); training goes on, metrics.jsonl has every value"]


def test_a_missing_package_names_the_command():
    with pytest.raises(UserError, match=r"pip install 'headrace\[no_such_tracker\]'"):
        import_tracker("no_such_tracker")
