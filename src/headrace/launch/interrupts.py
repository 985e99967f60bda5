"""Ctrl-C: once finishes the step, saves and ends; twice ends at once."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_CODE = 130
"""What a shell shows for a program that Ctrl-C ended."""


@contextmanager
def graceful_interrupts(*, stop: Callable[[], None], abandon: Callable[[], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM within the block, on the running event loop.

    Args:
        stop: Called at the first signal: ask the run to end well.
        abandon: Called at the second, just before the process ends: put the terminal right.

    Outside the main thread (a notebook's worker, say) signals cannot be handled, and are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            stop()
        else:
            abandon()
            # Nothing can interrupt a thread in the middle of a computation; the operating system can.
            os._exit(EXIT_CODE)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
