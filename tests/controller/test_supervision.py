import asyncio

import pytest

from headrace.controller.supervision import Supervisor, gather_in_order
from headrace.simulator.virtual_clock import run_virtually


async def fail_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise LookupError(f"failed after {seconds:g}")


def test_a_failing_task_ends_the_body_with_its_own_error() -> None:
    async def scenario() -> None:
        async with Supervisor() as tasks:
            tasks.start("failing", fail_after(1))
            await asyncio.sleep(1000)

    with pytest.raises(LookupError, match="failed after 1"):
        run_virtually(scenario())


def test_a_failing_body_ends_the_tasks() -> None:
    cancelled = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop().time())
            raise

    async def scenario() -> None:
        async with Supervisor() as tasks:
            tasks.start("forever", forever())
            await fail_after(2)

    with pytest.raises(LookupError, match="failed after 2"):
        run_virtually(scenario())
    assert cancelled == [2.0]


def test_tasks_end_with_the_body() -> None:
    async def scenario() -> float:
        async with Supervisor() as tasks:
            tasks.start("forever", asyncio.sleep(1000))
            await asyncio.sleep(3)
        return asyncio.get_running_loop().time()

    assert run_virtually(scenario()) == 3.0


def test_gathered_results_come_in_order() -> None:
    assert run_virtually(gather_in_order(asyncio.sleep(3 - number, number) for number in range(3))) == [0, 1, 2]


def test_the_first_failure_of_gathered_work_is_raised_alone() -> None:
    with pytest.raises(LookupError, match="failed after 1"):
        run_virtually(gather_in_order([fail_after(2), fail_after(1), fail_after(3)]))
