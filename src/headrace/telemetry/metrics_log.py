"""`metrics.jsonl`: the metrics of every step and every evaluation, one line each."""

from pathlib import Path
from typing import Any

from headrace.telemetry.events import Event
from headrace.telemetry.metrics import MetricRows
from headrace.telemetry.run_files import LineFile, json_line, read_lines, replacing


class MetricsLog:
    """Sink that appends `{"step": …, "time": …, <metric>: …}` for every step and every evaluation.

    Args:
        path: The file.
        version: Version that the run goes on from (0: a new run). Rows of later steps, which a killed run
            wrote after its last checkpoint, are cut, so that each step is in the file once.
    """

    def __init__(self, path: Path, *, version: int = 0) -> None:
        if path.is_file():
            _cut_beyond(path, version)
        self._lines = LineFile(path)
        self._rows = MetricRows()

    def handle(self, time: float, event: Event) -> None:
        """Write the event's line, if it carries metrics.

        Raises:
            RunFolderError: The disk is full, or the file cannot be written.
        """
        if row := self._rows.row(event):
            step, metrics = row
            self._lines.append({"step": step, "time": time, **metrics})

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a metrics file; a last line that a kill cut off is left out.

    Raises:
        RunFolderError: The file is missing or damaged.
    """
    return read_lines(path)


def _cut_beyond(path: Path, version: int) -> None:
    kept = [row for row in read_metrics(path) if row["step"] <= version]
    with replacing(path) as aside:
        aside.write_bytes(b"".join(json_line(row) for row in kept))
