"""Importing a function that a recipe names: `package.module:function` or `path/to/file.py:function`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import RecipeError


def import_function(function: str, *, key: str, base_folder: Path) -> Callable[..., Any]:
    """Import a function. What its module itself raises, other than that it cannot be imported, passes through.

    Args:
        function: The import path; a file is looked up in `base_folder` first, then in the current folder.
        key: The recipe's key, for messages.
        base_folder: The recipe's folder.

    Raises:
        RecipeError: It cannot be imported, or is not callable.
    """
    module_name, _, attribute = function.rpartition(":")
    module = _import_file(module_name, key, base_folder) if module_name.endswith(".py") else _import_module(module_name, key)
    found = getattr(module, attribute, None)
    if not callable(found):
        raise RecipeError(f"{key} = {function!r}: {module_name} has no function {attribute!r}")
    return found


def _import_module(name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(
            f"{key}: module {name!r} cannot be imported: {error}; a file beside the recipe is written 'file.py:function'"
        ) from error


def _import_file(name: str, key: str, base_folder: Path) -> ModuleType:
    found = next((path for path in ((base_folder / name), Path(name)) if path.is_file()), None)
    if found is None:
        raise RecipeError(f"{key}: there is no file {name!r} in {base_folder} nor in {Path.cwd()}")
    specification = importlib.util.spec_from_file_location(f"headrace_recipe_{found.stem}", found.resolve())
    if specification is None or specification.loader is None:
        raise RecipeError(f"{key}: {found} cannot be imported")
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and pickling look their module up by name while it is executed.
    sys.modules[specification.name] = module
    try:
        specification.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        raise RecipeError(f"{key}: {found} cannot be imported: {error}") from error
    return module
