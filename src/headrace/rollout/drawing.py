"""`drawing.c` on torch's tensors. Where it cannot be compiled, torch's own operations do the same (`sampling.py`)."""

from collections.abc import Callable, Sequence
from ctypes import c_int, c_int64, c_void_p
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.rollout.compiling import compiled

Draw = Callable[[torch.Tensor, Sequence[float], NDArray[np.float64]], tuple[list[int], list[float]]]
"""Takes bfloat16 logits [rows, vocabulary], temperatures and uniform numbers; gives what `draw_tokens` does."""


@lru_cache
def load_draw() -> Draw | None:
    """Compile it, or find what was compiled before; None where there is no compiler, or it fails."""
    library = compiled("drawing.c")
    if library is None:
        return None
    function = library.draw
    function.argtypes = (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int)

    def draw(logits: torch.Tensor, temperatures: Sequence[float], uniforms: NDArray[np.float64]) -> tuple[list[int], list[float]]:
        logits, uniforms = logits.contiguous(), np.ascontiguousarray(uniforms)
        heat, tokens, logprobs = np.array(temperatures, np.float64), np.empty(len(logits), np.int64), np.empty(len(logits), np.float64)
        arrays = (array.ctypes.data for array in (heat, uniforms, tokens, logprobs))
        function(logits.data_ptr(), *arrays, *logits.shape, torch.get_num_threads())
        if np.isnan(logprobs).any():
            raise ValueError(f"the logits of {np.isnan(logprobs).sum()} of {len(logits)} rows are NaN or infinite: no token can be drawn")
        return tokens.tolist(), logprobs.tolist()

    return draw
