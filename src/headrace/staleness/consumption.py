"""Which scored groups are trained on next: the order that makes max_staleness hold for every token, without waste.

At trainer version v let L(d) be the live groups with deadline ≤ d. As long as L(d) ≤ (d − v + 1)·B for every d ≥ v, each
deadline can be met: the batches of versions v … d have room for all of them. The batch of version v must
therefore take at least

    forced(d) = L(d) − (d − v)·B

of the groups with deadline ≤ d, and may take any others. A choice of groups is *feasible* when the places left in the
batch suffice for what is still forced. Proof and a worked example: docs/staleness.md.

Everything here is a function of its arguments: how many groups there are of each deadline, v and B. There are few deadlines,
at most max_staleness + 1 at a time, so that a choice costs the same however many groups are alive. Groups of one
deadline differ in nothing but their completion; the caller takes the first completed of them.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

Order = Callable[[int], float]
"""A consumption order: from a group's deadline, the version at which it has the group due. Earlier due goes first, then first completed."""

Counts = Mapping[float, int]
"""How many groups are due at each version; versions without groups are left out."""


def deadline_order(deadline: int) -> float:
    """Earliest deadline first; only as far as the bound stays safe for all other groups."""
    return deadline


def completion_order(deadline: int) -> float:
    """No group is ever due, so that the first completed goes first (AReaL's rule).

    Only the number of live groups is bounded, not the age of each token.
    """
    return math.inf


ORDERS: Mapping[str, Order] = {"deadline": deadline_order, "completion": completion_order}
"""By the names that a recipe uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """What a choice depends on, at one moment of forming the batch of `version`."""

    version: int
    groups_per_step: int
    live: Counts
    """All live groups: in flight, ready, and already taken into this batch."""
    taken: Counts
    """The groups already taken into this batch."""
    ready: Counts
    """Groups that could be taken now."""


def forced(live: Counts, *, version: int, groups_per_step: int) -> dict[float, float]:
    """For each deadline d of a live group, how many groups with deadline ≤ d the batch of `version` must take.

    Example: B = 2, v = 3, deadlines {3: 1, 4: 3} give {3: 1, 4: 2}: one group is due now, and of the four due by
    version 4 two must go now because the next batch has room for two.
    """
    deadlines = sorted(live)
    totals = accumulate(live[d] for d in deadlines)
    return {d: total - (d - version) * groups_per_step for d, total in zip(deadlines, totals, strict=True)}


def feasible(taken: Counts, state: BatchState) -> bool:
    """Whether a batch that starts with these groups can still take everything that is forced."""
    places = state.groups_per_step - sum(taken.values())
    others = {d: number - taken.get(d, 0) for d, number in state.live.items()}
    needed = forced(others, version=state.version, groups_per_step=state.groups_per_step)
    return places >= 0 and all(number <= places for number in needed.values())


def choose(state: BatchState, *, size: int) -> dict[float, int] | None:
    """The next `size` groups of a batch, by deadline: the earliest ready ones, or None while the batch has to wait for others.

    If the earliest are not feasible, no other groups are: a later deadline counts towards fewer of the forced numbers.
    If they are, each of them may be taken on its own before: taking one uses one place and lowers what is forced by at most one.

    Args:
        state: The moment's state.
        size: Groups to choose: 1, or the whole rest of the batch; fewer than that only at the end of the data.
    """
    if sum(state.ready.values()) < size:
        return None
    chosen = _earliest(state.ready, size)
    return chosen if feasible(Counter(state.taken) + Counter(chosen), state) else None


def _earliest(ready: Counts, size: int) -> dict[float, int]:
    chosen: dict[float, int] = {}
    for d in sorted(ready):
        if size == 0:
            break
        chosen[d] = min(ready[d], size)
        size -= chosen[d]
    return chosen
