"""From a recipe's `[data.source]` to rows."""

from pathlib import Path

from headrace.config.data import DataSource, FileSource, HubSource, PassedSource, ReasoningGymSource
from headrace.data.file_source import load_file
from headrace.data.gym_source import load_reasoning_gym
from headrace.data.hub_source import load_hub
from headrace.data.python_source import load_python
from headrace.data.rows import Row
from headrace.errors import DataError


def load_rows(source: DataSource, *, base_folder: Path) -> list[Row]:
    """Read all rows of a source.

    Args:
        source: The recipe's `[data.source]`.
        base_folder: The recipe's folder, which relative paths are looked up in first.

    Returns:
        At least one row; all have the same columns, and a column's values are of one type, or None.

    Raises:
        DataError: The source is missing, unreadable, empty, or its rows are unlike.
    """
    if isinstance(source, FileSource):
        return load_file(source.path, base_folder=base_folder)
    if isinstance(source, PassedSource):
        raise DataError(
            "data.source.type = 'passed' stands for rows that headrace.train gets from Python, and a recipe file has none; set another type"
        )
    if isinstance(source, HubSource):
        return load_hub(source)
    if isinstance(source, ReasoningGymSource):
        return load_reasoning_gym(source)
    return load_python(source.function, base_folder=base_folder)
