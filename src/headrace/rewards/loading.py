"""Finding a function by its name: `package.module:function` or `path/to/file.py:function`."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import RewardError


class ImportedFunction:
    """A function that is pickled as its name, so that a worker imports its module afresh instead of getting a copy."""

    def __init__(self, module: str, name: str, *, import_folders: tuple[str, ...]) -> None:
        self._origin = (module, name, import_folders)
        self.__wrapped__ = load_function(*self._origin)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return load_function, self._origin


def load_function(module: str, name: str, import_folders: tuple[str, ...]) -> Callable[..., Any]:
    """Import a function.

    Args:
        module: A module's dotted name, or the path of a Python file.
        name: The function's name in it.
        import_folders: Folders to look modules up in, after those of `sys.path`.

    Raises:
        RewardError: The module cannot be imported, or has no such function.
    """
    sys.path += [folder for folder in import_folders if folder not in sys.path]
    try:
        loaded = _module_of_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise RewardError(f"reward function {module}:{name} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(loaded, name, None)
    if not callable(function):
        defined = ", ".join(sorted(key for key, value in vars(loaded).items() if callable(value) and not key.startswith("_")))
        found = "is not there" if function is None else f"is {function!r:.100}, which cannot be called"
        raise RewardError(f"reward function {name!r} of {module} {found}; the module has: {defined or 'no functions'}")
    return function


def _module_of_file(path: Path) -> ModuleType:
    name = f"{path.stem}_{zlib.crc32(f'{path} {path.stat().st_mtime_ns}'.encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
