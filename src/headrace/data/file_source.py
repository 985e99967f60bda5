"""Rows from a `.jsonl`, `.parquet` or `.csv` file."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.data.rows import Row, rows_from_iterable
from headrace.errors import DataError


def load_file(path: str, *, base_folder: Path) -> list[Row]:
    """Read a file of rows.

    Args:
        path: Absolute, or relative to `base_folder`, or else to the current folder.
        base_folder: The recipe's folder.

    Raises:
        DataError: The file is missing, of another type, unreadable, empty, or its rows are unlike.
    """
    found = _find(Path(path).expanduser(), base_folder)
    reader = READERS.get(found.suffix.lower())
    if reader is None:
        raise DataError(f"{found}: files of type {found.suffix or 'no suffix'!r} cannot be read; give one of {', '.join(READERS)}")
    try:
        rows = reader(found)
    except OSError as error:
        raise DataError(f"{found} cannot be read: {error.strerror or error}") from error
    return rows_from_iterable(rows, origin=str(found))


def _find(path: Path, base_folder: Path) -> Path:
    candidates = [path] if path.is_absolute() else list(dict.fromkeys([(base_folder / path).resolve(), path.resolve()]))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " or ".join(str(candidate) for candidate in candidates)
    what = "a folder, not a file" if any(candidate.is_dir() for candidate in candidates) else "missing"
    raise DataError(f"data file {str(path)!r} is {what} (looked at {looked}); set data.source.path to a .jsonl, .parquet or .csv file")


def _read_jsonl(path: Path) -> list[object]:
    rows: list[object] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: not valid JSON: {error}") from error
            if not isinstance(rows[-1], dict):
                raise DataError(f"{path}, line {number}: a {type(rows[-1]).__name__}, not an object of columns")
    return rows


def _read_parquet(path: Path) -> list[object]:
    try:
        return list(pyarrow.parquet.read_table(path).to_pylist())
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


def _read_csv(path: Path) -> list[object]:
    try:
        table = pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    except pa.ArrowException as error:
        reason = "it is empty" if path.stat().st_size == 0 else str(error).splitlines()[0]
        raise DataError(f"{path} is not a readable CSV file: {reason}") from error
    columns = {name: _with_conversations(table[name].to_pylist()) for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _with_conversations(values: list[object]) -> list[object]:
    """A CSV cell can only hold a conversation as JSON: a column of such cells becomes one of message lists."""
    decoded: list[object] = []
    for value in values:
        if not isinstance(value, str) or not value.lstrip().startswith("[{"):
            return values
        try:
            messages = json.loads(value)
        except ValueError:
            return values
        if not all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages):
            return values
        decoded.append(messages)
    return decoded


READERS: dict[str, Callable[[Path], list[object]]] = {".jsonl": _read_jsonl, ".parquet": _read_parquet, ".csv": _read_csv}
