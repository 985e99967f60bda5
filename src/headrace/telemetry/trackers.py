"""Experiment trackers: metrics to programs outside the run. A tracker that fails never stops training."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Protocol

from headrace.errors import UserError
from headrace.telemetry.events import Event
from headrace.telemetry.metrics import MetricRows


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step or an evaluation."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class TrackerSink:
    """Sink that gives every step's and every evaluation's metrics to a tracker.

    Args:
        name: The tracker's name, for the warning.
        tracker: Where the metrics go.
        warn: Told once, when the tracker fails for the first time. It goes on being tried, since a network may come back.
    """

    def __init__(self, name: str, tracker: Tracker, *, warn: Callable[[str], None]) -> None:
        self._name = name
        self._tracker = tracker
        self._warn = warn
        self._warned = False
        self._rows = MetricRows()

    def handle(self, time: float, event: Event) -> None:
        """Pass the event's metrics on, if it carries any."""
        if row := self._rows.row(event):
            step, metrics = row
            self._try(lambda: self._tracker.log(step, metrics))

    def close(self) -> None:
        """Close the tracker."""
        self._try(self._tracker.close)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - foreign code, network included; a lost chart is no reason to lose a run
            if not self._warned:
                self._warned = True
                self._warn(f"{self._name} failed ({type(error).__name__}: {error}); training goes on, metrics.jsonl has every value")


def import_tracker(name: str) -> ModuleType:
    """Import a tracker's package, which is also the name of headrace's extra.

    Raises:
        UserError: It cannot be imported; the message has the command that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            f"telemetry.report_to names {name!r}, but its package cannot be imported ({error}); "
            f"run: pip install 'headrace[{name}]', or take {name!r} out of telemetry.report_to"
        ) from error
