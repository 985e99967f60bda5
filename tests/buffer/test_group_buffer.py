import asyncio

import pytest
from small_groups import prompt, rollout, scored

from headrace.buffer.group_buffer import BufferLimits, GroupBuffer
from headrace.errors import LedgerError, StalledError
from headrace.simulator.virtual_clock import run_virtually
from headrace.staleness.consumption import completion_order, deadline_order


def buffer(
    *, slots: int = 4, groups_per_step: int = 2, max_staleness: int = 1, max_groups: int | None = None, order=deadline_order
) -> GroupBuffer:
    limits = BufferLimits(
        slots=slots,
        groups_per_step=groups_per_step,
        max_staleness=max_staleness,
        bounds_every_token=order is deadline_order,
        max_groups=max_groups,
        stall_seconds=100,
    )
    return GroupBuffer(limits, order=order, clock=lambda: asyncio.get_running_loop().time())


def test_a_group_is_counted_in_each_place_of_its_way() -> None:
    async def scenario() -> None:
        groups = buffer()
        first, second, third = (groups.admit(prompt(row)) for row in range(3))
        groups.finish(scored(first))
        groups.finish(scored(second))
        groups.discard(third.group_id, reason="reward_failed", num_tokens=7)
        ledger = groups.snapshot()
        assert (ledger.admitted, ledger.in_flight, ledger.ready, ledger.trained) == (3, 0, 2, 0)
        assert (ledger.discarded, ledger.discarded_tokens, ledger.ready_tokens) == ({"reward_failed": 1}, 7, 4)
        assert [group.group.group_id for group in await groups.take_batch()] == [0, 1]
        assert groups.snapshot().ready == 2, "a taken group holds its slot until its weights are published"
        groups.release_trained(1)
        ledger = groups.snapshot()
        assert (ledger.live, ledger.trained, ledger.trained_tokens) == (0, 2, 4)

    run_virtually(scenario())


def test_a_slot_is_free_after_publication_and_not_before() -> None:
    async def scenario() -> list[float]:
        groups = buffer(slots=2)
        for row in range(2):
            groups.finish(scored(groups.admit(prompt(row))))
        times = []

        async def admit_another() -> None:
            await groups.wait_for_slot()
            times.append(asyncio.get_running_loop().time())

        task = asyncio.create_task(admit_another())
        await groups.take_batch()
        await asyncio.sleep(5)
        groups.release_trained(1)
        await task
        return times

    assert run_virtually(scenario()) == [5.0]


def test_a_discarded_group_returns_its_slot_at_once() -> None:
    async def scenario() -> None:
        groups = buffer(slots=2)
        admitted = [groups.admit(prompt(row)) for row in range(2)]
        groups.discard(admitted[0].group_id, reason="no_reward", num_tokens=0)
        await groups.wait_for_slot()

    run_virtually(scenario())


def test_admission_beyond_the_slots_is_refused() -> None:
    async def scenario() -> None:
        groups = buffer(slots=2)
        for row in range(2):
            groups.admit(prompt(row))
        with pytest.raises(LedgerError, match="admission without a free slot"):
            groups.admit(prompt(2))

    run_virtually(scenario())


def test_the_deadline_follows_the_version() -> None:
    async def scenario() -> None:
        groups = buffer(max_staleness=3, slots=8)
        assert groups.admit(prompt()).deadline == 3
        groups.release_trained(5)
        assert groups.admit(prompt()).deadline == 8

    run_virtually(scenario())


def test_the_trainer_waits_for_the_group_that_is_due() -> None:
    async def scenario() -> list[int]:
        groups = buffer(slots=4, max_staleness=1)
        due = [groups.admit(prompt(row)) for row in range(2)]
        groups.release_trained(1)
        for row in range(2):
            groups.finish(scored(groups.admit(prompt(row))))
        waiting = asyncio.create_task(groups.take_batch())
        await asyncio.sleep(1)
        assert not waiting.done()
        for group in due:
            groups.finish(scored(group))
        return [taken.group.group_id for taken in await waiting]

    assert run_virtually(scenario()) == [0, 1]


def test_streaming_takes_groups_one_after_the_other() -> None:
    async def scenario() -> list[list[int]]:
        groups = buffer(slots=2, max_staleness=0)
        admitted = [groups.admit(prompt(row)) for row in range(2)]
        taken = []
        for group in reversed(admitted):
            groups.finish(scored(group))
            taken.append([each.group.group_id for each in await groups.take_some()])
        return [*taken, [each.group.group_id for each in await groups.take_some()]]

    assert run_virtually(scenario()) == [[1], [0], []]


def test_the_last_batch_may_be_smaller() -> None:
    async def scenario() -> None:
        groups = buffer()
        groups.finish(scored(groups.admit(prompt())))
        groups.end_of_prompts()
        assert len(await groups.take_batch()) == 1
        groups.release_trained(1)
        assert await groups.take_batch() == []

    run_virtually(scenario())


def test_no_more_groups_are_admitted_than_the_run_trains_and_a_discarded_one_is_replaced() -> None:
    async def scenario() -> None:
        groups = buffer(max_groups=2)
        first, _ = groups.admit(prompt(0)), groups.admit(prompt(1))
        waiting = asyncio.create_task(groups.wait_for_slot())
        await asyncio.sleep(1)
        assert not waiting.done()
        groups.discard(first.group_id, reason="no_reward", num_tokens=0)
        await waiting

    run_virtually(scenario())


def test_a_token_beyond_the_bound_is_an_error_and_not_trained_on() -> None:
    async def scenario() -> None:
        groups = buffer()
        groups.release_trained(3)
        for row in range(2):
            groups.finish(scored(groups.admit(prompt(row)), rollout(1, 3), rollout(3)))
        with pytest.raises(LedgerError, match="group 0 has a token of version 1, 2 behind the trainer's 3, beyond max_staleness = 1"):
            await groups.take_batch()

    run_virtually(scenario())


def test_completion_order_reports_old_tokens_instead() -> None:
    async def scenario() -> None:
        groups = buffer(order=completion_order)
        groups.release_trained(3)
        for row in range(2):
            groups.finish(scored(groups.admit(prompt(row)), rollout(1, 3), rollout(3)))
        assert len(await groups.take_batch()) == 2

    run_virtually(scenario())


def test_a_group_that_never_comes_is_named_with_its_age() -> None:
    async def scenario() -> None:
        groups = buffer()
        groups.admit(prompt())
        await asyncio.sleep(7)
        await groups.take_batch()

    expected = r"waited 100 s .* for scored groups for the batch of version 0; 1 groups in flight \(group 0 for 107 s\), 0 ready, 4 slots"
    with pytest.raises(StalledError, match=expected):
        run_virtually(scenario())


def test_finishing_twice_is_an_error() -> None:
    async def scenario() -> None:
        groups = buffer()
        group = groups.admit(prompt())
        groups.finish(scored(group))
        with pytest.raises(LedgerError, match="group 0 is ready, expected in flight"):
            groups.finish(scored(group))

    run_virtually(scenario())


def test_restored_books_go_on() -> None:
    async def scenario() -> None:
        before = buffer()
        for row in range(3):
            before.admit(prompt(row))
        saved, live = before.snapshot(), before.live_groups()
        after = buffer()
        after.restore(saved, version=4)
        again = [after.readmit(group.group_id, group.prompt) for group in live]
        assert [(group.group_id, group.version, group.deadline) for group in again] == [(0, 4, 5), (1, 4, 5), (2, 4, 5)]
        assert after.snapshot() == saved
        assert after.admit(prompt(3)).group_id == 3

    run_virtually(scenario())
