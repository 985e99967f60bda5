import asyncio

import pytest

from headrace.buffer.signal import Signal, limited
from headrace.errors import StalledError
from headrace.simulator.virtual_clock import run_virtually


def test_a_waiter_goes_on_when_its_predicate_is_true_and_not_before() -> None:
    async def scenario() -> list[str]:
        signal, value, seen = Signal(), [0], list[str]()

        async def wait_for(number: int) -> None:
            await signal.wait_until(lambda: value[0] >= number)
            seen.append(f"{number} at {value[0]}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for(2))
            tasks.create_task(wait_for(1))
            for _ in range(2):
                await asyncio.sleep(1)
                value[0] += 1
                signal.notify()
        return seen

    assert run_virtually(scenario()) == ["1 at 1", "2 at 2"]


def test_a_true_predicate_needs_no_notification() -> None:
    run_virtually(Signal().wait_until(lambda: True))


def test_a_waiter_gets_what_it_found_even_if_that_is_empty() -> None:
    async def scenario() -> dict[str, int]:
        signal, found = Signal(), list[dict[str, int]]()
        waiting = asyncio.create_task(signal.wait_for(lambda: found[-1] if found else None))
        await asyncio.sleep(1)
        assert not waiting.done()
        found.append({})
        signal.notify()
        return await waiting

    assert run_virtually(scenario()) == {}


def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    async def scenario() -> bool:
        signal, ready = Signal(), [False]
        cancelled = asyncio.create_task(signal.wait_until(lambda: ready[0]))
        patient = asyncio.create_task(signal.wait_until(lambda: ready[0]))
        await asyncio.sleep(0)
        cancelled.cancel()
        ready[0] = True
        signal.notify()
        await patient
        return cancelled.cancelled()

    assert run_virtually(scenario())


def test_a_limited_wait_names_what_it_waited_for() -> None:
    with pytest.raises(StalledError, match=r"waited 30 s \(run.stall_seconds\) for the rain"):
        run_virtually(limited(asyncio.sleep(31), seconds=30, what=lambda: "the rain"))


def test_a_limited_wait_returns_its_result() -> None:
    assert run_virtually(limited(asyncio.sleep(29, "wet"), seconds=30, what=lambda: "the rain")) == "wet"


def test_a_time_limit_of_what_is_waited_for_is_not_taken_for_the_waits_own() -> None:
    async def gives_up() -> None:
        raise TimeoutError("the server took too long")

    with pytest.raises(TimeoutError, match="the server took too long"):
        run_virtually(limited(gives_up(), seconds=30, what=lambda: "the rain"))
