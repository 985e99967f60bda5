"""How the C library keeps freed memory."""

import ctypes
import sys

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""Options of glibc's `malloc.h`."""
_LARGE_BYTES = 4 * 1024 * 1024


def return_freed_memory() -> None:
    """Have threads share one arena and give large tensors back when they are freed, where the C library is glibc.

    By default each thread gets an arena that keeps what the thread frees, in pieces. Engine and trainer free gigabytes of temporary
    tensors, which the other could use: on the quickstart this lowers the peak by about half a gigabyte. Call it before the threads start.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # (musl has none)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
