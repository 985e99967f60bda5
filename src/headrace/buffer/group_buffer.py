"""Every live group, from its admission to the publication of the weights trained on it.

A group is in flight (being generated or scored), ready, or taken (in the batch being trained on):

    admit ─▶ in flight ─ finish ─▶ ready ─ take ─▶ taken ─ release_trained ─▶ (trained)
                 └────── discard ──▶ (discarded)

Two parties wait: the admission for a free slot (woken by `release_trained` and `discard`), and the trainer for groups
that it may take (woken by `finish`, `discard` and `end_of_prompts`). All of it on one event loop.

Groups are counted as they come and go, by the few versions at which they are due: no decision looks at every group.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from headrace.buffer.signal import Signal, stalled
from headrace.errors import LedgerError
from headrace.interfaces import Clock
from headrace.staleness.admission import deadline
from headrace.staleness.consumption import BatchState, Order, choose
from headrace.types import AdmittedGroup, Ledger, Prompt, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    group: AdmittedGroup
    waits_for: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimits:
    """The numbers that make a schedule."""

    slots: int
    groups_per_step: int
    max_staleness: int
    bounds_every_token: bool
    """Whether the order of consumption promises the bound for each token; then a token beyond it is an error."""
    max_groups: int | None
    """Groups to train in the whole run: nothing is admitted beyond, so that N steps generate N batches and no more."""
    stall_seconds: float
    """Longest time in which no group comes any further while the trainer waits for one."""


class GroupBuffer:
    """The live groups, and the books about all others."""

    def __init__(self, limits: BufferLimits, *, order: Order, clock: Clock) -> None:
        self._limits = limits
        self._order = order
        self._clock = clock
        self._version = 0
        self._in_flight: dict[int, _InFlight] = {}
        self._ready: defaultdict[float, deque[ScoredGroup]] = defaultdict(deque)  # (by due version, first completed first)
        self._taken: list[ScoredGroup] = []
        self._live_due: Counter[float] = Counter()
        self._taken_due: Counter[float] = Counter()
        self._ready_tokens = 0
        self._slots_changed = Signal()
        self._groups_changed = Signal()
        self._prompts_ended = False
        self._admitted = 0
        self._trained = 0
        self._trained_tokens = 0
        self._discarded: Counter[str] = Counter()
        self._discarded_tokens = 0
        self._progressed_at = 0.0

    async def wait_for_slot(self) -> None:
        """Wait until a group may be admitted.

        There is no limit here: the trainer frees the slots, and each of its own waits has one.
        """
        await self._slots_changed.wait_until(self._may_admit)

    def admit(self, prompt: Prompt) -> AdmittedGroup:
        """Give a prompt a free slot."""
        if not self._may_admit():
            raise LedgerError(f"admission without a free slot: {self._describe()}")
        self._admitted += 1
        return self._place(self._admitted - 1, prompt)

    def readmit(self, group_id: int, prompt: Prompt) -> AdmittedGroup:
        """Place a group that was live when the checkpoint was written; it is generated again, with a new deadline."""
        return self._place(group_id, prompt)

    def end_of_prompts(self) -> None:
        """No further prompt will come; the last batch may be smaller."""
        self._prompts_ended = True
        self._groups_changed.notify()

    def advance(self, group_id: int, *, waits_for: str) -> None:
        """A group in flight has come a step further, and now waits for this."""
        self._progressed_at = self._clock()
        self._in_flight[group_id] = _InFlight(group=self._in_flight[group_id].group, waits_for=waits_for, since=self._progressed_at)

    def finish(self, scored: ScoredGroup) -> None:
        """A group is scored: it may be trained on."""
        group = self._end_flight(scored.group.group_id)
        self._ready[self._order(group.deadline)].append(scored)
        self._ready_tokens += scored.num_tokens
        self._groups_changed.notify()

    def discard(self, group_id: int, *, reason: str, num_tokens: int) -> None:
        """A group will not be trained on; its slot is free at once."""
        group = self._end_flight(group_id)
        self._live_due -= Counter([self._order(group.deadline)])
        self._discarded[reason] += 1
        self._discarded_tokens += num_tokens
        self._slots_changed.notify()
        self._groups_changed.notify()

    async def take_batch(self) -> list[ScoredGroup]:
        """Wait until the whole batch of the current version can be formed, and take it. Empty at the end of the run.

        Raises:
            StalledError: Not formed within the limit.
        """
        return self._take(await self._wait_for_choice(self._choose_rest))

    async def take_some(self) -> list[ScoredGroup]:
        """Wait until at least one further group of the current batch may be taken, and take all that may. Empty when the batch is complete.

        Raises:
            StalledError: None within the limit.
        """
        taken: list[ScoredGroup] = []
        chosen = await self._wait_for_choice(self._choose_one)
        while chosen:
            taken += self._take(chosen)
            chosen = self._choose_one()
        return taken

    def release_trained(self, version: int) -> None:
        """The weights of `version` are published: the groups trained into them are done, their slots free."""
        num_tokens = sum(scored.num_tokens for scored in self._taken)
        self._trained += len(self._taken)
        self._trained_tokens += num_tokens
        self._ready_tokens -= num_tokens
        self._live_due -= self._taken_due
        self._taken_due.clear()
        self._taken.clear()
        self._version = version
        self._slots_changed.notify()

    def snapshot(self) -> Ledger:
        """The books, as they stand now.

        Raises:
            LedgerError: They do not balance.
        """
        ledger = Ledger(
            admitted=self._admitted,
            in_flight=len(self._in_flight),
            ready=self._num_ready() + len(self._taken),
            trained=self._trained,
            discarded=dict(self._discarded),
            ready_tokens=self._ready_tokens,
            trained_tokens=self._trained_tokens,
            discarded_tokens=self._discarded_tokens,
        )
        if not ledger.balances:
            raise LedgerError(f"admitted groups are not all accounted for: {ledger}")
        return ledger

    def restore(self, ledger: Ledger, *, version: int) -> None:
        """Go on from a checkpoint's books; the caller readmits its live groups."""
        self._version = version
        self._admitted = ledger.admitted
        self._trained = ledger.trained
        self._trained_tokens = ledger.trained_tokens
        self._discarded = Counter(ledger.discarded)
        self._discarded_tokens = ledger.discarded_tokens

    def live_groups(self) -> list[AdmittedGroup]:
        """All groups that hold a slot, in the order of their admission."""
        scored = [*self._taken, *(ready for queue in self._ready.values() for ready in queue)]
        groups = [*(entry.group for entry in self._in_flight.values()), *(each.group for each in scored)]
        return sorted(groups, key=lambda group: group.group_id)

    def _place(self, group_id: int, prompt: Prompt) -> AdmittedGroup:
        last = deadline(version=self._version, max_staleness=self._limits.max_staleness)
        group = AdmittedGroup(group_id=group_id, prompt=prompt, version=self._version, deadline=last)
        self._in_flight[group_id] = _InFlight(group=group, waits_for="rollouts", since=self._clock())
        self._live_due[self._order(last)] += 1
        return group

    def _end_flight(self, group_id: int) -> AdmittedGroup:
        entry = self._in_flight.pop(group_id, None)
        if entry is None:
            raise LedgerError(f"group {group_id} is not in flight, so it can be neither finished nor discarded: {self._describe()}")
        self._progressed_at = self._clock()
        return entry.group

    def _may_admit(self) -> bool:
        return self._num_live() < self._limits.slots and self._wants_more()

    def _wants_more(self) -> bool:
        limit = self._limits.max_groups
        return not self._prompts_ended and (limit is None or self._trained + self._num_live() < limit)

    def _num_ready(self) -> int:
        return sum(map(len, self._ready.values()))

    def _num_live(self) -> int:
        return self._live_due.total()

    def _still_to_take(self) -> int:
        """Groups that the current batch still lacks; at the end of the run it takes what is left."""
        missing = self._limits.groups_per_step - len(self._taken)
        return missing if self._wants_more() else min(missing, self._num_live() - len(self._taken))

    def _choose_rest(self) -> Mapping[float, int] | None:
        return choose(self._state(), size=self._still_to_take())

    def _choose_one(self) -> Mapping[float, int] | None:
        return choose(self._state(), size=min(1, self._still_to_take()))

    def _state(self) -> BatchState:
        return BatchState(
            version=self._version,
            groups_per_step=self._limits.groups_per_step,
            live=self._live_due,
            taken=self._taken_due,
            ready={due: len(queue) for due, queue in self._ready.items()},
        )

    def _take(self, chosen: Mapping[float, int]) -> list[ScoredGroup]:
        taken = [self._ready[due].popleft() for due, number in chosen.items() for _ in range(number)]
        for scored in taken:
            self._check_age(scored)
        for due in [due for due in chosen if not self._ready[due]]:
            del self._ready[due]
        self._taken += taken
        self._taken_due.update(chosen)
        return taken

    def _check_age(self, scored: ScoredGroup) -> None:
        staleness = self._version - scored.oldest_version
        if self._limits.bounds_every_token and staleness > self._limits.max_staleness:
            raise LedgerError(
                f"group {scored.group.group_id} has a token of version {scored.oldest_version}, {staleness} behind the trainer's "
                f"{self._version}, beyond max_staleness = {self._limits.max_staleness}"
            )

    async def _wait_for_choice(self, choice: Callable[[], Mapping[float, int] | None]) -> Mapping[float, int]:
        """The limit counts from when a group last came a step further: many that are discarded on the way are no stall."""
        seconds = self._limits.stall_seconds
        self._progressed_at = self._clock()
        while (left := self._progressed_at + seconds - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    return await self._groups_changed.wait_for(choice)
        raise stalled(f"scored groups for the batch of version {self._version}; {self._describe()}", seconds=seconds)

    def _describe(self) -> str:
        now = self._clock()
        oldest = ", ".join(
            f"group {number} waits {now - entry.since:.0f} s for {entry.waits_for}" for number, entry in islice(self._in_flight.items(), 5)
        )
        discarded = "".join(f", {number} discarded ({reason})" for reason, number in self._discarded.items())
        in_flight = f"{len(self._in_flight)} groups in flight ({oldest or 'none'})"
        return f"{in_flight}, {self._num_ready()} ready{discarded}, {self._limits.slots} slots"
