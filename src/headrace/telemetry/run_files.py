"""Writing into the run folder: whole files appear at once, lines survive a kill, and a full disk says what to do."""

import errno
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import RunFolderError

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn any `OSError` of the block into one that names the file and says what to do.

    Raises:
        RunFolderError: The block could not write (disk full, no permission, folder gone).
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            advice = "free space on that disk, then resume the run, or start it with run.output_dir on another disk"
        else:
            advice = "check that the folder exists and may be written to, then resume the run"
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}; {advice}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to, and rename it over `path` when the block ends well: nobody sees half a file.

    Raises:
        RunFolderError: It could not be written.
    """
    aside = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield aside
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def json_line(record: Mapping[str, Any]) -> bytes:
    """One record as compact ASCII JSON with its newline; equal records in equal order give equal bytes."""
    return _ENCODER.encode(record).encode("ascii") + b"\n"


def json_fields(value: Any, *, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """A dataclass as JSON has it: mappings sorted, paths by their name (runs in two folders log the same), non-finite numbers as null."""
    return {field.name: _json_value(getattr(value, field.name)) for field in fields(value) if field.name not in leave_out}


def _json_value(value: Any) -> Any:
    if isinstance(value, int | str | None):
        return value
    match value:
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {name: _json_value(value[name]) for name in sorted(value)}
        case Path():
            return value.name
        case _:
            return json_fields(value) if is_dataclass(value) else value


class LineFile:
    """JSON lines at the end of a file. Each is handed to the operating system whole, so that a killed run keeps it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_cut_line(path)
            # Unbuffered: nothing is left to lose when the process dies, nor to fail in close() after a full disk.
            self._file = path.open("ab", buffering=0)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            RunFolderError: The disk is full, or the file cannot be written.
        """
        self.write(json_line(record))

    def write(self, lines: bytes) -> None:
        """Write whole lines that are made already.

        Raises:
            RunFolderError: The disk is full, or the file cannot be written.
        """
        rest = lines
        with disk_errors(self.path):
            while rest:
                rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file of JSON lines, without a last line that a kill cut off.

    Raises:
        RunFolderError: The file is missing, or a line before the last is not JSON.
    """
    if not path.is_file():
        raise RunFolderError(f"there is no {path}; give the folder of a run that has started")
    *whole, _cut = path.read_bytes().split(b"\n")
    return [_parsed(path, number, line) for number, line in enumerate(whole, start=1)]


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise RunFolderError(f"line {number} of {path} is not JSON ({error}), so the file is damaged; remove that line") from error


def _drop_cut_line(path: Path) -> None:
    if path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
