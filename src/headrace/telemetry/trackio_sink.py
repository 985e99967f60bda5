"""Metrics to trackio, which keeps them on this machine."""

from collections.abc import Mapping
from typing import Any

from headrace.telemetry.trackers import import_tracker


class TrackioTracker:
    """A trackio run.

    Args:
        project: trackio project.
        name: Name of the run; a resumed run with the same name goes on in the same charts.
        config: What to show as the run's configuration.

    Raises:
        UserError: The package is missing.
    """

    def __init__(self, *, project: str, name: str, config: Mapping[str, Any]) -> None:
        trackio = import_tracker("trackio")
        self._run = trackio.init(project=project, name=name, config=dict(config), resume="allow")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics over."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()
