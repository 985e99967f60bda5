"""Files of ui.perfetto.dev and chrome://tracing: the JSON array format of Google's "Trace Event Format", one event a line.

A viewer does not need the array's end, so what a killed run wrote can be opened as it is.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import RunFolderError
from headrace.telemetry.run_files import LineFile, disk_errors, json_line

_END = b"]\n"

Args = Mapping[str, object]
"""What a viewer shows of a slice when it is clicked on."""


class TraceFile:
    """One process of a trace. Each event is handed to the operating system whole, when it is over.

    A second `TraceFile` on the same path appends a process of its own, whose times may overlap those of the first.
    Times are in seconds. A track is a row of the picture; its number is its place from the top.

    Args:
        path: The file.
        process: Name of the process.

    Raises:
        RunFolderError: From here and from every method: the disk is full, or the file cannot be written.
    """

    def __init__(self, path: Path, *, process: str) -> None:
        self._lines = LineFile(path)
        num_processes = _reopen_array(path)
        self._process = num_processes + 1
        name = json_line({"pid": self._process, "ph": "M", "name": "process_name", "args": {"name": process}})
        self._before = (b"," if num_processes else b"[") + name + b","
        self._is_whole = False
        self._tracks: set[int] = set()
        self._ends: dict[int, int] = {}

    def slice(self, track: int, track_name: str, name: str, *, start: float, end: float, args: Args) -> None:
        """Draw what went on from `start` to `end`.

        It begins no earlier than the track's last slice ended, as viewers drop slices that overlap.
        """
        self._name(track, track_name)
        begins = max(_microseconds(start), self._ends.get(track, 0))
        ends = self._ends[track] = max(_microseconds(end), begins)
        self._append(ph="X", name=name, ts=begins, dur=ends - begins, tid=track, args=args)

    def begin(self, track: int, track_name: str, name: str, *, time: float, args: Args) -> None:
        """Draw something that lasts until `end` is called, or until the file ends."""
        self._name(track, track_name)
        self._append(ph="B", name=name, ts=_microseconds(time), tid=track, args=args)

    def end(self, track: int, *, time: float, args: Args) -> None:
        """The end of the track's last `begin`; the arguments are added to its own."""
        self._append(ph="E", ts=_microseconds(time), tid=track, args=args)

    def count(self, counter: str, *, time: float, values: Mapping[str, float]) -> None:
        """Draw values that hold from `time` to the counter's next ones."""
        self._append(ph="C", name=counter, ts=_microseconds(time), args=values)

    def close(self) -> None:
        """End the array and close the file; safe to call twice."""
        if self._is_whole:
            self._is_whole = False
            with suppress(RunFolderError):  # (a full disk; the array may stay open)
                self._lines.write(_END)
        self._lines.close()

    def _name(self, track: int, name: str) -> None:
        if track not in self._tracks:
            self._tracks.add(track)
            self._append(ph="M", name="thread_name", tid=track, args={"name": name})
            self._append(ph="M", name="thread_sort_index", tid=track, args={"sort_index": track})

    def _append(self, **event: object) -> None:
        self._is_whole = False  # (while the line is written: a full disk may cut it)
        self._lines.write(self._before + json_line({"pid": self._process, **event}))
        self._before, self._is_whole = b",", True


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Read a trace's events, also those of a run that goes on or was killed: the array's end and a cut last line may be missing.

    Raises:
        RunFolderError: The file is missing or damaged.
    """
    if not path.is_file():
        raise RunFolderError(f"there is no {path}; a run writes it with telemetry.profile=true")
    whole = path.read_bytes().rpartition(b"\n")[0] + b"\n"
    try:
        return json.loads(whole if whole.endswith(b"\n" + _END) else whole + _END)
    except ValueError as error:
        raise RunFolderError(f"{path} is not a trace ({error}); remove it") from error


def _reopen_array(path: Path) -> int:
    """Take the array's end away, and count the processes that are in it."""
    with disk_errors(path):
        content = path.read_bytes() if path.is_file() else b""
        if content.endswith(b"\n" + _END):
            os.truncate(path, len(content) - len(_END))
    return content.count(b'"name":"process_name"')


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
