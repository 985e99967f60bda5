import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_groups import prompt, rollout, scored

from headrace.buffer.group_buffer import BufferLimits, GroupBuffer
from headrace.errors import LedgerError, StalledError
from headrace.simulator.virtual_clock import run_virtually
from headrace.staleness.consumption import Order, completion_order, deadline_order
from headrace.types import AdmittedGroup, Ledger, ScoredGroup


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

    expected = (
        r"waited 100 s .* for scored groups for the batch of version 0; 1 groups in flight \(group 0 waits 107 s for rollouts\), "
        "0 ready, 4 slots"
    )
    with pytest.raises(StalledError, match=expected):
        run_virtually(scenario())


def test_groups_that_come_further_are_no_stall_and_what_became_of_them_is_told() -> None:
    """A group discarded every 60 s, five times; then one that is scored at last, and nothing after it."""

    async def sampling(groups: GroupBuffer) -> None:
        for row in range(1, 6):
            group = groups.admit(prompt(row))
            await asyncio.sleep(60)
            groups.discard(group.group_id, reason="no_signal", num_tokens=1)
        groups.advance(0, waits_for="rewards and teacher")

    async def scenario() -> float:
        groups = buffer()
        groups.admit(prompt())
        going_on = asyncio.create_task(sampling(groups))
        expected = r"1 groups in flight \(group 0 waits 100 s for rewards and teacher\), 0 ready, 5 discarded \(no_signal\), 4 slots"
        with pytest.raises(StalledError, match=expected):
            await groups.take_batch()
        await going_on
        return asyncio.get_running_loop().time()

    assert run_virtually(scenario()) == 400


def test_finishing_twice_is_an_error() -> None:
    async def scenario() -> None:
        groups = buffer()
        group = groups.admit(prompt())
        groups.finish(scored(group))
        with pytest.raises(LedgerError, match="group 0 is not in flight, so it can be neither finished nor discarded"):
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


@pytest.mark.parametrize(("order", "expected"), [(deadline_order, [1, 0, 2]), (completion_order, [2, 1, 0])])
def test_the_order_of_consumption_and_ties_by_completion(order, expected: list[int]) -> None:
    async def scenario() -> list[int]:
        groups = buffer(order=order, groups_per_step=3, slots=6)
        first, second = groups.admit(prompt(0)), groups.admit(prompt(1))
        groups.release_trained(1)
        for group in (groups.admit(prompt(2)), second, first):
            groups.finish(scored(group))
        return [taken.group.group_id for taken in await groups.take_batch()]

    assert run_virtually(scenario()) == expected


class Recount:
    """The groups in lists by their place; every question looks at each of them."""

    def __init__(self, *, slots: int, groups_per_step: int, order: Order) -> None:
        self.version = 0
        self.in_flight: list[AdmittedGroup] = []
        self.ready: list[ScoredGroup] = []
        self.taken: list[ScoredGroup] = []
        self.trained: list[ScoredGroup] = []
        self.discarded: list[str] = []
        self._slots = slots
        self._groups_per_step = groups_per_step
        self._order = order

    @property
    def live(self) -> list[AdmittedGroup]:
        return [*self.in_flight, *(each.group for each in [*self.ready, *self.taken])]

    @property
    def has_free_slot(self) -> bool:
        return len(self.live) < self._slots

    @property
    def batch_is_complete(self) -> bool:
        return len(self.taken) == self._groups_per_step

    def take(self) -> list[ScoredGroup]:
        """One group after another, while what is forced still fits into the places that are left."""
        before = len(self.taken)
        while self.ready and not self.batch_is_complete:
            first = min(self.ready, key=lambda each: self._order(each.group.deadline))
            if not self._leaves_room_for_others(first):
                break
            self.ready.remove(first)
            self.taken.append(first)
        return self.taken[before:]

    def _leaves_room_for_others(self, first: ScoredGroup) -> bool:
        places = self._groups_per_step - len(self.taken) - 1
        gone = {each.group.group_id for each in [*self.taken, first]}
        due = [self._order(group.deadline) for group in self.live if group.group_id not in gone]
        return all(sum(x <= d for x in due) - (d - self.version) * self._groups_per_step <= places for d in due)

    def train(self) -> None:
        self.version += 1
        self.trained += self.taken
        self.taken = []

    def ledger(self) -> Ledger:
        waiting = [*self.ready, *self.taken]
        return Ledger(
            admitted=len(self.live) + len(self.trained) + len(self.discarded),
            in_flight=len(self.in_flight),
            ready=len(waiting),
            trained=len(self.trained),
            discarded=Counter(self.discarded),
            ready_tokens=tokens(waiting),
            trained_tokens=tokens(self.trained),
            discarded_tokens=3 * len(self.discarded),
        )


def tokens(groups: Sequence[ScoredGroup]) -> int:
    return sum(len(rollout.completion_ids) for each in groups for rollout in each.rollouts)


async def do_something(rng: random.Random, groups: GroupBuffer, books: Recount) -> None:
    """One random thing that may happen now, to the buffer and to the lists."""
    match rng.choice(["admit", "admit", "finish", "finish", "discard", "take"]):
        case "admit" if books.has_free_slot:
            books.in_flight.append(groups.admit(prompt()))
        case "finish" if books.in_flight:
            group = books.in_flight.pop(rng.randrange(len(books.in_flight)))
            books.ready.append(scored(group, *(rollout(*[group.version] * rng.randint(1, 3)) for _ in range(2))))
            groups.finish(books.ready[-1])
        case "discard" if books.in_flight:
            group = books.in_flight.pop(rng.randrange(len(books.in_flight)))
            books.discarded.append(rng.choice(["no_reward", "reward_failed"]))
            groups.discard(group.group_id, reason=books.discarded[-1], num_tokens=3)
        case "take":
            await take(groups, books)


async def take(groups: GroupBuffer, books: Recount) -> None:
    taking = asyncio.create_task(groups.take_some())
    await asyncio.sleep(0)
    expected = books.take()
    assert taking.done() == bool(expected)
    if expected:
        assert taking.result() == expected
    taking.cancel()
    if books.batch_is_complete:
        books.train()
        groups.release_trained(books.version)


@given(
    seed=st.integers(0, 2**32),
    groups_per_step=st.integers(1, 4),
    max_staleness=st.integers(0, 4),
    order=st.sampled_from([deadline_order, completion_order]),
)
def test_the_running_counts_are_those_of_a_recount(seed: int, groups_per_step: int, max_staleness: int, order: Order) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        slots = rng.randint(groups_per_step, (max_staleness + 1) * groups_per_step)
        groups = buffer(slots=slots, groups_per_step=groups_per_step, max_staleness=max_staleness, order=order)
        books = Recount(slots=slots, groups_per_step=groups_per_step, order=order)
        for _ in range(80):
            await do_something(rng, groups, books)
            assert groups.snapshot() == books.ledger()
            assert groups.live_groups() == sorted(books.live, key=lambda group: group.group_id)

    run_virtually(scenario())
