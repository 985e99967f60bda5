"""What a data set must be before anything else: a list of dictionaries that agree in their columns' types."""

from collections.abc import Iterable, Mapping
from numbers import Number

from headrace.errors import DataError

Row = dict[str, object]
"""One row of a data set: column name to value."""


def rows_from_iterable(rows: Iterable[object], *, origin: str) -> list[Row]:
    """Read rows given from Python: dictionaries, a Hugging Face `Dataset`, any iterable of mappings.

    A column that a row lacks is filled with None, as in a table.

    Args:
        rows: The rows; an endless iterable never returns.
        origin: Where they come from, for messages.

    Raises:
        DataError: No rows, a row that is no mapping, or a column of unlike values.
    """
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise DataError(f"{origin}: expected an iterable of rows (dictionaries), got {type(rows).__name__}")
    tables = [_row(row, number, origin) for number, row in enumerate(rows)]
    if not tables:
        raise DataError(f"{origin}: no rows, so there is nothing to train on; give at least one")
    columns = list(dict.fromkeys(column for table in tables for column in table))
    for column in columns:
        _check_alike(column, tables, origin)
    return [{column: table.get(column) for column in columns} for table in tables]


def _row(row: object, number: int, origin: str) -> Row:
    if not isinstance(row, Mapping):
        raise DataError(f"{origin}: row {number} is {_kind(row)}, not a dictionary of columns")
    return {str(column): value for column, value in row.items()}


def _check_alike(column: str, tables: list[Row], origin: str) -> None:
    kinds: dict[str, int] = {}
    for number, table in enumerate(tables):
        if (value := table.get(column)) is not None:
            kinds.setdefault(_kind(value), number)
    if len(kinds) > 1:
        found = " but ".join(f"{kind} in row {number}" for kind, number in kinds.items())
        raise DataError(f"{origin}: column {column!r} has {found}; give every row the same type")


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, Number):
        return "a number"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return "a list"
    return f"a {type(value).__name__}"
