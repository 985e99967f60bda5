"""The event log: every event as one JSON line, the same bytes for the same run. It holds numbers and names, never texts or tokens."""

from pathlib import Path
from typing import Any

from headrace.telemetry.events import EvaluationFinished, Event, StepFinished
from headrace.telemetry.run_files import LineFile, json_fields, read_lines


class EventLog:
    """Sink that appends every event to a file of JSON lines; a resumed run goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    def handle(self, time: float, event: Event) -> None:
        """Write the event's line.

        Raises:
            RunFolderError: The disk is full, or the file cannot be written.
        """
        self._lines.append({"time": time, "event": type(event).__name__, **_record(event)})

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read an event log: one dictionary an event, with `time` and `event` (the event's type) and its fields.

    A last line that a kill cut off is left out.

    Raises:
        RunFolderError: The file is missing or damaged.
    """
    return read_lines(path)


def _record(event: Event) -> dict[str, Any]:
    record = json_fields(event, leave_out=("groups", "answers"))
    match event:
        case StepFinished():
            return {**record, "group_ids": [trained.scored.group.group_id for trained in event.groups]}
        case EvaluationFinished():
            return {**record, "num_answers": len(event.answers)}
        case _:
            return record
