"""Functions of the user's that a recipe names: `package.module:function` or `path/to/file.py:function`."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import RecipeError


class ImportedFunction:
    """A function that is pickled as its name, so that another process imports its module afresh instead of getting a copy."""

    def __init__(self, module: str, name: str, *, key: str, import_folders: tuple[str, ...]) -> None:
        self._origin = (module, name, key, import_folders)
        self.__wrapped__ = load_function(*self._origin)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return load_function, self._origin


def import_function(function: str, *, key: str, base_folder: Path) -> ImportedFunction:
    """Import a function. Its module may import what lies beside it and beside the recipe.

    Args:
        function: The import path; a file or module is looked up in `base_folder` first, then where the command runs.
        key: The recipe's key, for messages.
        base_folder: The recipe's folder.

    Raises:
        RecipeError: It cannot be imported, or is not callable.
    """
    module, _, name = function.rpartition(":")
    folders = (base_folder.resolve(), Path.cwd())
    if module.endswith(".py"):
        file = _existing_file(module, folders, key)
        module, folders = str(file), (file.parent, *folders)
    return ImportedFunction(module, name, key=key, import_folders=tuple(map(str, folders)))


def load_function(module: str, name: str, key: str, import_folders: tuple[str, ...]) -> Callable[..., Any]:
    """Import a function.

    Args:
        module: A module's dotted name, or the path of a Python file.
        name: The function's name in it.
        key: The recipe's key, for messages.
        import_folders: Folders to look modules up in, after those of `sys.path`.

    Raises:
        RecipeError: The module cannot be imported, or has no such function.
    """
    sys.path += [folder for folder in import_folders if folder not in sys.path]
    is_file = module.endswith(".py")
    try:
        loaded = _module_of_file(Path(module)) if is_file else importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        hint = "" if is_file else "; a file beside the recipe is written 'file.py:function'"
        raise RecipeError(f"{key}: {module}:{name} cannot be imported: {type(error).__name__}: {error}{hint}") from error
    function = getattr(loaded, name, None)
    if not callable(function):
        defined = ", ".join(sorted(key for key, value in vars(loaded).items() if callable(value) and not key.startswith("_")))
        found = f"has no function {name!r}" if function is None else f"has as {name!r} {function!r:.100}, which cannot be called"
        raise RecipeError(f"{key}: {module} {found}; it has the functions {defined or 'none'}")
    return function


def _existing_file(path: str, folders: Sequence[Path], key: str) -> Path:
    candidates = [folder / path for folder in folders]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    looked_at = " and ".join(sorted({str(candidate) for candidate in candidates}))
    raise RecipeError(f"{key}: there is no file {path!r}; looked at {looked_at}")


def _module_of_file(path: Path) -> ModuleType:
    name = f"{path.stem}_{zlib.crc32(f'{path} {path.stat().st_mtime_ns}'.encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name while it is executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
