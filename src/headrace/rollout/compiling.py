"""C sources of this package, compiled once for this processor with the system's C compiler."""

import ctypes
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.config.cache_folder import cache_folder

_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
_COMPILE_SECONDS = 60


def compiled(name: str, **constants: int) -> ctypes.CDLL | None:
    """Compile a source beside this file, or find what was compiled before. Call it after torch's import: both then share OpenMP's threads.

    Args:
        name: The source's file name.
        constants: Macros that it is compiled for.

    Returns:
        None where there is no compiler, or it fails.
    """
    source = Path(__file__).with_name(name)
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        return None
    flags = [*_FLAGS, *(f"-D{constant.upper()}={value}" for constant, value in constants.items())]
    library = cache_folder() / "kernels" / f"{_digest(source, [compiler, *flags])}.so"
    try:
        if not library.is_file():
            _build(compiler, flags, source, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):
        return None


def _build(compiler: str, flags: list[str], source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        object_file, linked = Path(name, "kernels.o"), Path(name, "kernels.so")
        # In two steps: linked with -ffast-math, a library makes the whole process round its smallest numbers to 0.
        for command in ([*flags, "-c", source, "-o", object_file], ["-shared", "-fopenmp", object_file, "-o", linked, "-lm"]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        linked.replace(library)


def _digest(source: Path, command: list[str]) -> str:
    """Of everything that the compiled code depends on: another processor sharing the folder must not run it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    processor = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    parts = [source.read_text(encoding="utf-8"), *command, platform.machine(), *sorted(set(processor))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
