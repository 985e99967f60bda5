"""Rows made by a Python function of the user's."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from headrace.data.rows import Row, rows_from_iterable
from headrace.errors import DataError


def load_python(function: str, *, base_folder: Path) -> list[Row]:
    """Call `package.module:function` or `path/to/file.py:function` and read the rows that it returns.

    What the function itself raises passes through, with its own traceback.

    Args:
        function: The import path; a file is looked up in `base_folder` first, then in the current folder.
        base_folder: The recipe's folder.

    Raises:
        DataError: It cannot be imported, is not callable, or does not return rows.
    """
    module_name, _, attribute = function.rpartition(":")
    module = _import_file(module_name, base_folder) if module_name.endswith(".py") else _import_module(module_name)
    make_rows: Callable[[], object] | None = getattr(module, attribute, None)
    if not callable(make_rows):
        raise DataError(f"data.source.function = {function!r}: {module_name} has no function {attribute!r}")
    return rows_from_iterable(make_rows(), origin=function)  # pyright: ignore[reportArgumentType]


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"data.source.function: module {name!r} cannot be imported: {error}; a file beside the recipe is written 'file.py:function'"
        ) from error


def _import_file(name: str, base_folder: Path) -> ModuleType:
    found = next((path for path in ((base_folder / name), Path(name)) if path.is_file()), None)
    if found is None:
        raise DataError(f"data.source.function: there is no file {name!r} in {base_folder} nor in {Path.cwd()}")
    specification = importlib.util.spec_from_file_location(f"headrace_data_{found.stem}", found.resolve())
    if specification is None or specification.loader is None:
        raise DataError(f"data.source.function: {found} cannot be imported")
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and pickling look their module up by name while it is executed.
    sys.modules[specification.name] = module
    try:
        specification.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        raise DataError(f"data.source.function: {found} cannot be imported: {error}") from error
    return module
