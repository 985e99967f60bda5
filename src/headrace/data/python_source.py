"""Rows made by a Python function of the user's."""

from pathlib import Path

from headrace.data.rows import Row, rows_from_iterable
from headrace.python_functions import import_function


def load_python(function: str, *, base_folder: Path) -> list[Row]:
    """Call `package.module:function` or `path/to/file.py:function` and read the rows that it returns.

    What the function itself raises passes through, with its own traceback.

    Args:
        function: The import path; a file is looked up in `base_folder` first, then in the current folder.
        base_folder: The recipe's folder.

    Raises:
        RecipeError: It cannot be imported, or is not callable.
        DataError: It does not return rows.
    """
    make_rows = import_function(function, key="data.source.function", base_folder=base_folder)
    return rows_from_iterable(make_rows(), origin=function)
