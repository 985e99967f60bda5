import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.staleness.consumption import BatchState, choose, completion_order, deadline_order, feasible, forced


def state(
    ready: Sequence[float], *, in_flight: Sequence[float] = (), taken: Sequence[float] = (), version: int = 0, groups_per_step: int = 2
) -> BatchState:
    """Every group by its deadline."""
    return BatchState(
        version=version,
        groups_per_step=groups_per_step,
        live=Counter([*ready, *in_flight, *taken]),
        taken=Counter(taken),
        ready=Counter(ready),
    )


def due(order, *deadlines: int) -> list[float]:
    return [order(deadline) for deadline in deadlines]


def test_forced_counts_of_the_documented_example() -> None:
    assert forced({3: 1, 4: 3}, version=3, groups_per_step=2) == {3: 1, 4: 2}


def test_nothing_is_forced_when_later_batches_have_room() -> None:
    assert forced({5: 2}, version=3, groups_per_step=2) == {5: -2}


def test_earliest_deadline_goes_first() -> None:
    assert choose(state([2, 1, 1]), size=1) == {1: 1}
    assert choose(state([2, 2, 1], groups_per_step=3), size=2) == {1: 1, 2: 1}


def test_the_batch_waits_for_a_straggler_that_is_due_now() -> None:
    """One group in flight must be trained at this version, so only one of the two places is free for others."""
    assert choose(state([1, 1], in_flight=[0]), size=2) is None


def test_slack_lets_the_batch_pass_a_straggler() -> None:
    """B = 2, deadlines 1: of three groups two may go now, the straggler fits into the next batch."""
    assert choose(state([1, 1], in_flight=[1]), size=2) == {1: 2}


def test_without_slack_the_first_admitted_go_first() -> None:
    """All slots used (eta = 1, B = 2): two groups due at version 0 are in flight, two of version 1 are ready; nobody passes."""
    full = state([1, 1], in_flight=[0, 0])
    assert choose(full, size=1) is None
    assert choose(full, size=2) is None


def test_streaming_takes_a_ready_group_while_the_forced_one_is_still_to_come() -> None:
    assert choose(state([1], in_flight=[0]), size=1) == {1: 1}
    after = state([], in_flight=[0], taken=[1])
    assert feasible(after.taken, after)


def test_a_group_in_the_batch_leaves_its_place_to_nobody() -> None:
    """B = 2 with one place taken: the other is the straggler's."""
    assert choose(state([1], in_flight=[0], taken=[1]), size=1) is None


def test_completion_order_ignores_deadlines() -> None:
    """Groups that are due before and after the batch's version are all the same to it, and nobody waits for a straggler."""
    ready, in_flight = due(completion_order, 0, 9), due(completion_order, 0, 0)
    assert len(set(ready)) == 1
    assert choose(state(ready, in_flight=in_flight), size=2) == {ready[0]: 2}
    assert choose(state(due(deadline_order, 0, 9), in_flight=due(deadline_order, 0, 0)), size=2) is None


@pytest.mark.parametrize("order", [deadline_order, completion_order])
def test_no_ready_group_no_choice(order) -> None:
    nothing_ready = state([], in_flight=due(order, 0))
    assert choose(nothing_ready, size=1) is None
    assert choose(nothing_ready, size=0) == {}


@given(data=st.data(), groups_per_step=st.integers(1, 5), max_staleness=st.integers(0, 5))
def test_any_feasible_choices_keep_every_deadline(data: st.DataObject, groups_per_step: int, max_staleness: int) -> None:
    """The proof of docs/staleness.md, run: L(d) <= (d - v + 1)·B survives any feasible batch and any admission within the slots."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    slots = data.draw(st.integers(groups_per_step, (max_staleness + 1) * groups_per_step))
    live: list[int] = []
    for version in range(12):
        live += [version + max_staleness] * rng.randint(max(0, groups_per_step - len(live)), slots - len(live))
        assert all(sum(x <= d for x in live) <= (d - version + 1) * groups_per_step for d in live)
        taken: list[int] = []
        while len(taken) < groups_per_step:
            now = state([], in_flight=live, taken=taken, version=version, groups_per_step=groups_per_step)
            choices = [position for position, d in enumerate(live) if feasible(Counter([*taken, d]), now)]
            assert choices, "a batch got stuck"
            taken.append(live.pop(rng.choice(choices)))
        assert min(taken) >= version, "a group was trained after its deadline"
        assert all(d > version for d in live), "a group missed its deadline"


deadlines = st.lists(st.integers(3, 7), max_size=12)


@given(ready=deadlines, in_flight=deadlines, groups_per_step=st.integers(1, 4))
def test_a_whole_batch_is_the_earliest_deadlines_and_meets_every_forced_count(
    ready: list[int], in_flight: list[int], groups_per_step: int
) -> None:
    """The definition, over every single group."""
    live = [*ready, *in_flight]
    earliest = sorted(ready)[:groups_per_step]
    needed = {d: sum(x <= d for x in live) - (d - 3) * groups_per_step for d in live}
    allowed = len(earliest) == groups_per_step and all(sum(x <= d for x in earliest) >= n for d, n in needed.items())
    chosen = choose(state(ready, in_flight=in_flight, version=3, groups_per_step=groups_per_step), size=groups_per_step)
    assert chosen == (Counter(earliest) if allowed else None)


@given(
    ready=deadlines, in_flight=deadlines, taken=st.lists(st.integers(3, 7), max_size=3), groups_per_step=st.integers(1, 6), data=st.data()
)
def test_groups_that_may_go_together_may_go_one_by_one(
    ready: list[int], in_flight: list[int], taken: list[int], groups_per_step: int, data: st.DataObject
) -> None:
    """Streaming and whole batches follow one rule: the first choice of `size` groups is `size` choices of the first group."""
    size = data.draw(st.integers(1, max(1, groups_per_step - len(taken))))
    moment = state(ready, in_flight=in_flight, taken=taken, version=3, groups_per_step=groups_per_step)
    one_by_one: Counter[float] = Counter()
    for _ in range(size):
        step = BatchState(
            version=3,
            groups_per_step=groups_per_step,
            live=moment.live,
            taken=moment.taken + one_by_one,
            ready=moment.ready - one_by_one,
        )
        first = choose(step, size=1)
        if first is None:
            break
        one_by_one.update(first)
    assert choose(moment, size=size) == (one_by_one if one_by_one.total() == size else None)
