"""How the C library keeps freed memory."""

import ctypes
import sys

_M_ARENA_MAX = -8
"""glibc's `malloc.h`."""


def share_one_malloc_arena() -> None:
    """Have all threads allocate from one arena, where the C library is glibc; call it before the threads start.

    By default each thread gets an arena that keeps what the thread frees. Engine and trainer free gigabytes of temporary tensors, which
    the other could use: on the quickstart one arena lowers the peak by half a gigabyte, at no cost in time.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # (musl has none)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
