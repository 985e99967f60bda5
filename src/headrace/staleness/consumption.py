"""Which scored group is trained on next: the order that makes max_staleness hold for every token, without waste.

At trainer version v let L(d) be the live groups with deadline ≤ d. As long as L(d) ≤ (d − v + 1)·B for every d ≥ v, each
deadline can be met: the batches of versions v … d have room for all of them. The batch of version v must
therefore take at least

    forced(d) = L(d) − (d − v)·B

of the groups with deadline ≤ d, and may take any others. A choice of groups is *feasible* when the places left in the
batch suffice for what is still forced. Proof and a worked example: docs/staleness.md.

Everything here is a function of its arguments: deadlines, the order of completion, v and B.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A scored group that waits to be trained on."""

    group_id: int
    deadline: int
    completed: int
    """Its place in the order of completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """What a choice depends on, at one moment of forming the batch of `version`."""

    version: int
    groups_per_step: int
    live: Sequence[int]
    """Deadlines of all live groups: in flight, ready, and already taken into this batch."""
    taken: Sequence[int]
    """Deadlines of the groups already taken into this batch."""
    ready: Sequence[Candidate]
    """Groups that could be taken now."""


Order = Callable[[BatchState], Candidate | None]
"""A consumption order: the group to take next, or None while the batch has to wait for others."""


def forced(live: Sequence[int], *, version: int, groups_per_step: int) -> dict[int, int]:
    """For each deadline d of a live group, how many groups with deadline ≤ d the batch of `version` must take.

    Example: B = 2, v = 3, deadlines [3, 4, 4, 4] give {3: 1, 4: 2}: one group is due now, and of the four due by
    version 4 two must go now because the next batch has room for two.
    """
    return {d: _count_until(live, d) - (d - version) * groups_per_step for d in sorted(set(live))}


def feasible(taken: Sequence[int], state: BatchState) -> bool:
    """Whether a batch that starts with groups of these deadlines can still take everything that is forced."""
    places = state.groups_per_step - len(taken)
    needed = forced(state.live, version=state.version, groups_per_step=state.groups_per_step)
    return places >= 0 and all(count - _count_until(taken, d) <= places for d, count in needed.items())


def deadline_order(state: BatchState) -> Candidate | None:
    """Earliest deadline first, then first completed; only as far as the bound stays safe for all other groups.

    If the candidate with the earliest deadline is not feasible, no other one is: a later deadline counts
    towards fewer of the forced numbers.
    """
    if not state.ready:
        return None
    first = min(state.ready, key=lambda candidate: (candidate.deadline, candidate.completed))
    return first if feasible((*state.taken, first.deadline), state) else None


def completion_order(state: BatchState) -> Candidate | None:
    """First completed first (AReaL's rule). Only the number of live groups is bounded, not the age of each token."""
    return min(state.ready, key=lambda candidate: candidate.completed, default=None)


def choose_batch(order: Order, state: BatchState, *, size: int) -> list[Candidate] | None:
    """The whole rest of a batch at once, or None while it cannot be formed.

    Args:
        order: The consumption order.
        state: The moment's state.
        size: Groups to choose; fewer than B only at the end of the data.
    """
    chosen: list[Candidate] = []
    while len(chosen) < size:
        candidate = order(state)
        if candidate is None:
            return None
        chosen.append(candidate)
        state = replace(
            state,
            taken=(*state.taken, candidate.deadline),
            ready=[other for other in state.ready if other.group_id != candidate.group_id],
        )
    return chosen


def _count_until(deadlines: Sequence[int], d: int) -> int:
    return sum(1 for deadline in deadlines if deadline <= d)


ORDERS: Mapping[str, Order] = {"deadline": deadline_order, "completion": completion_order}
"""By the names that a recipe uses."""
