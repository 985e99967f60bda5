import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.staleness.consumption import (
    BatchState,
    Candidate,
    choose_batch,
    completion_order,
    deadline_order,
    feasible,
    forced,
)


def candidates(*deadlines: int) -> list[Candidate]:
    """Ready groups, completed in the order given."""
    return [Candidate(group_id=number, deadline=deadline, completed=number) for number, deadline in enumerate(deadlines)]


def state(
    ready: Sequence[Candidate], *, in_flight: Sequence[int] = (), taken: Sequence[int] = (), version: int = 0, groups_per_step: int = 2
) -> BatchState:
    live = [*(candidate.deadline for candidate in ready), *in_flight, *taken]
    return BatchState(version=version, groups_per_step=groups_per_step, live=live, taken=taken, ready=ready)


def test_forced_counts_of_the_documented_example() -> None:
    assert forced([3, 4, 4, 4], version=3, groups_per_step=2) == {3: 1, 4: 2}


def test_nothing_is_forced_when_later_batches_have_room() -> None:
    assert forced([5, 5], version=3, groups_per_step=2) == {5: -2}


def test_earliest_deadline_goes_first_and_ties_by_completion() -> None:
    ready = [
        Candidate(group_id=7, deadline=2, completed=0),
        Candidate(group_id=8, deadline=1, completed=2),
        Candidate(group_id=9, deadline=1, completed=1),
    ]
    chosen = deadline_order(state(ready))
    assert chosen is not None
    assert chosen.group_id == 9


def test_the_batch_waits_for_a_straggler_that_is_due_now() -> None:
    """One group in flight must be trained at this version, so only one of the two places is free for others."""
    assert choose_batch(deadline_order, state(candidates(1, 1), in_flight=[0]), size=2) is None


def test_slack_lets_the_batch_pass_a_straggler() -> None:
    """B = 2, deadlines 1: of three groups two may go now, the straggler fits into the next batch."""
    chosen = choose_batch(deadline_order, state(candidates(1, 1), in_flight=[1]), size=2)
    assert chosen is not None
    assert [candidate.group_id for candidate in chosen] == [0, 1]


def test_without_slack_the_first_admitted_go_first() -> None:
    """All slots used (eta = 1, B = 2): two groups due at version 0 are in flight, two of version 1 are ready; nobody passes."""
    full = state(candidates(1, 1), in_flight=[0, 0])
    assert deadline_order(full) is None
    assert choose_batch(deadline_order, full, size=2) is None


def test_streaming_takes_a_ready_group_while_the_forced_one_is_still_to_come() -> None:
    chosen = deadline_order(state(candidates(1), in_flight=[0]))
    assert chosen is not None
    after = state([], in_flight=[0], taken=[1])
    assert feasible(after.taken, after)


def test_completion_order_ignores_deadlines() -> None:
    ready = [Candidate(group_id=1, deadline=0, completed=1), Candidate(group_id=2, deadline=9, completed=0)]
    chosen = completion_order(state(ready, in_flight=[0, 0]))
    assert chosen is not None
    assert chosen.group_id == 2


def test_no_ready_group_no_choice() -> None:
    assert deadline_order(state([], in_flight=[0])) is None
    assert completion_order(state([], in_flight=[0])) is None
    assert choose_batch(deadline_order, state([], in_flight=[0]), size=0) == []


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
            now = BatchState(version=version, groups_per_step=groups_per_step, live=[*live, *taken], taken=taken, ready=[])
            choices = [position for position, d in enumerate(live) if feasible([*taken, d], now)]
            assert choices, "a batch got stuck"
            taken.append(live.pop(rng.choice(choices)))
        assert min(taken) >= version, "a group was trained after its deadline"
        assert all(d > version for d in live), "a group missed its deadline"


@given(
    ready=st.lists(st.integers(3, 7), max_size=12),
    in_flight=st.lists(st.integers(3, 7), max_size=8),
    groups_per_step=st.integers(1, 4),
)
def test_a_whole_batch_is_the_earliest_deadlines_and_meets_every_forced_count(
    ready: list[int], in_flight: list[int], groups_per_step: int
) -> None:
    """The definition in one piece, against the step-by-step choice."""
    moment = state(candidates(*ready), in_flight=in_flight, version=3, groups_per_step=groups_per_step)
    chosen = choose_batch(deadline_order, moment, size=groups_per_step)
    earliest = sorted(moment.ready, key=lambda candidate: (candidate.deadline, candidate.completed))[:groups_per_step]
    needed = {d: sum(x <= d for x in moment.live) - (d - 3) * groups_per_step for d in set(moment.live)}
    allowed = len(earliest) == groups_per_step and all(sum(c.deadline <= d for c in earliest) >= n for d, n in needed.items())
    assert chosen == (earliest if allowed else None)


@pytest.mark.parametrize("order", [deadline_order, completion_order])
def test_the_choice_does_not_depend_on_the_order_of_the_list(order) -> None:
    ready = candidates(2, 1, 1, 2)
    forwards, backwards = state(ready), state(ready[::-1])
    assert order(forwards) == order(backwards)
