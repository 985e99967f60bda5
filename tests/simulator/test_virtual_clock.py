import asyncio
import time

import pytest

from headrace.errors import StalledError
from headrace.simulator.virtual_clock import run_virtually


def test_an_hour_passes_at_once_and_in_order() -> None:
    seen: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((asyncio.get_running_loop().time(), name))

    async def both() -> None:
        await asyncio.gather(sleeper("hour", 3600), sleeper("minute", 60))

    start = time.monotonic()
    run_virtually(both())
    assert seen == [(60, "minute"), (3600, "hour")]
    assert time.monotonic() - start < 60


def test_a_run_that_nothing_can_wake_is_an_error() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledError, match="nothing could ever wake"):
        run_virtually(forever())


def test_a_blocking_call_takes_no_virtual_time() -> None:
    async def call() -> tuple[int, float]:
        return await asyncio.to_thread(lambda: 7), asyncio.get_running_loop().time()

    assert run_virtually(call()) == (7, 0.0)


def test_time_limits_run_on_virtual_time() -> None:
    async def limited() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(500):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtually(limited()) == 500
