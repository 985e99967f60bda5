"""`kernels.c`, compiled once for this processor with the system's C compiler. Without one, torch's own operations do the same."""

import ctypes
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from headrace.config.cache_folder import cache_folder

_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
_COMPILE_SECONDS = 60


class Kernels:
    """The compiled functions, for contiguous bfloat16 tensors on the CPU."""

    def __init__(self, library: Path) -> None:
        # Loaded after torch, so that both have the same OpenMP threads.
        self._library = ctypes.CDLL(str(library))

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Weight · x / sqrt(mean(x²) + epsilon), over the last dimension of [rows, features]."""
        rows, features = inputs.shape
        outputs = torch.empty_like(inputs)
        self._library.rms_norm(
            _address(inputs),
            _address(weight),
            _address(outputs),
            ctypes.c_int64(rows),
            ctypes.c_int64(features),
            ctypes.c_float(epsilon),
            torch.get_num_threads(),
        )
        return outputs

    def rotate_and_write(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor) -> None:
        """Apply rotary positions to queries and keys in place, and write keys and values to the cache.

        Args:
            heads: Queries, keys and values [tokens, query heads + 2 · key heads, head size].
            cos: [tokens, head size].
            sin: [tokens, head size].
            cache: One layer's [rows, 2, key heads, head size].
            rows: Each token's row of the cache, [tokens] int64.
        """
        self._library.rotate_and_write(
            _address(heads),
            _address(cos),
            _address(sin),
            _address(cache),
            _address(rows),
            ctypes.c_int64(len(heads)),
            ctypes.c_int64(cache.shape[2]),
            torch.get_num_threads(),
        )

    def attend(self, queries: torch.Tensor, cache: torch.Tensor, spans: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of one token of each rollout over two stretches of the cache.

        Args:
            queries: [tokens, query heads, head size]; tokens may stand apart.
            cache: One layer's [rows, 2, key heads, head size].
            spans: [tokens, 2, 2] int64: first row and number of rows of each stretch; one may be empty.
            scaling: Factor of the scores.

        Returns:
            [tokens, query heads, head size].
        """
        outputs = torch.empty(queries.shape, dtype=queries.dtype)
        self._library.attend_decoded(
            _address(queries),
            ctypes.c_int64(queries.stride(0)),
            _address(cache),
            _address(spans),
            _address(outputs),
            ctypes.c_int64(len(queries)),
            ctypes.c_int64(cache.shape[2]),
            ctypes.c_float(scaling),
            torch.get_num_threads(),
        )
        return outputs


@lru_cache
def load_kernels(*, head_size: int, siblings: int) -> Kernels | None:
    """Compile them, or find what was compiled before.

    Args:
        head_size: Even.
        siblings: Query heads that share a key-value head.

    Returns:
        None where there is no compiler, or it fails.
    """
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        return None
    flags = [*_FLAGS, f"-DHEAD_SIZE={head_size}", f"-DSIBLINGS={siblings}"]
    library = cache_folder() / "kernels" / f"{_digest([compiler, *flags])}.so"
    try:
        if not library.is_file():
            _build(compiler, flags, library)
        return Kernels(library)
    except (OSError, subprocess.SubprocessError):
        return None


def _build(compiler: str, flags: list[str], library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as name:
        compiled, linked = Path(name, "kernels.o"), Path(name, "kernels.so")
        # In two steps: linked with -ffast-math, a library makes the whole process round its smallest numbers to 0.
        for command in ([*flags, "-c", _SOURCE, "-o", compiled], ["-shared", "-fopenmp", compiled, "-o", linked, "-lm"]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        linked.replace(library)


def _digest(command: list[str]) -> str:
    """Of everything that the compiled code depends on: another processor sharing the folder must not run it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    processor = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    parts = [_SOURCE.read_text(encoding="utf-8"), *command, platform.machine(), *sorted(set(processor))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
