"""`kernels.c` on torch's tensors. Where it cannot be compiled, torch's own operations do the same."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import lru_cache

import torch

from headrace.rollout.compiling import compiled


class Kernels:
    """The compiled functions, for contiguous bfloat16 tensors on the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._rms_norm = library.rms_norm
        self._rms_norm.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float, c_int)
        self._rotate_and_write = library.rotate_and_write
        self._rotate_and_write.argtypes = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int)
        self._attend = library.attend_decoded
        self._attend.argtypes = (c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_float, c_int)

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Weight · x / sqrt(mean(x²) + epsilon), over the last dimension of [rows, features]."""
        outputs = torch.empty_like(inputs)
        self._rms_norm(inputs.data_ptr(), weight.data_ptr(), outputs.data_ptr(), *inputs.shape, epsilon, torch.get_num_threads())
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
        addresses = (tensor.data_ptr() for tensor in (heads, cos, sin, cache, rows))
        self._rotate_and_write(*addresses, heads.shape[0], cache.shape[2], torch.get_num_threads())

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
        addresses = (tensor.data_ptr() for tensor in (cache, spans, outputs))
        sizes = (queries.shape[0], cache.shape[2])
        self._attend(queries.data_ptr(), queries.stride(0), *addresses, *sizes, scaling, torch.get_num_threads())
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
    library = compiled("kernels.c", head_size=head_size, siblings=siblings)
    return None if library is None else Kernels(library)
