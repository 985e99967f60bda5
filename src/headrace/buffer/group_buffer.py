"""Every live group, from its admission to the publication of the weights trained on it.

A group is in flight (being generated or scored), ready, or taken (in the batch being trained on):

    admit ─▶ in flight ─ finish ─▶ ready ─ take ─▶ taken ─ release_trained ─▶ (trained)
                 └────── discard ──▶ (discarded)

Two parties wait: the admission for a free slot (woken by `release_trained` and `discard`), and the trainer for groups
that it may take (woken by `finish`, `discard` and `end_of_prompts`). All of it on one event loop.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from headrace.buffer.signal import Signal, limited
from headrace.errors import LedgerError
from headrace.interfaces import Clock
from headrace.staleness.admission import deadline
from headrace.staleness.consumption import BatchState, Candidate, Order, choose_batch
from headrace.types import AdmittedGroup, Ledger, Prompt, ScoredGroup


class _Stage(Enum):
    IN_FLIGHT = "in flight"
    READY = "ready"
    TAKEN = "taken"


@dataclass(slots=True)
class _Entry:
    group: AdmittedGroup
    since: float
    stage: _Stage = _Stage.IN_FLIGHT
    scored: ScoredGroup | None = None
    completed: int = 0


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


class GroupBuffer:
    """The live groups, and the books about all others."""

    def __init__(self, limits: BufferLimits, *, order: Order, clock: Clock) -> None:
        self._limits = limits
        self._order = order
        self._clock = clock
        self._version = 0
        self._entries: dict[int, _Entry] = {}
        self._changed = Signal()
        self._prompts_ended = False
        self._completed = 0
        self._admitted = 0
        self._trained = 0
        self._trained_tokens = 0
        self._discarded: Counter[str] = Counter()
        self._discarded_tokens = 0

    async def wait_for_slot(self) -> None:
        """Wait until a group may be admitted.

        There is no limit here: the trainer frees the slots, and each of its own waits has one.
        """
        await self._changed.wait_until(self._may_admit)

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
        self._changed.notify()

    def finish(self, scored: ScoredGroup) -> None:
        """A group is scored: it may be trained on."""
        entry = self._entries[scored.group.group_id]
        self._expect(entry, _Stage.IN_FLIGHT)
        entry.stage, entry.scored, entry.completed, entry.since = _Stage.READY, scored, self._completed, self._clock()
        self._completed += 1
        self._changed.notify()

    def discard(self, group_id: int, *, reason: str, num_tokens: int) -> None:
        """A group will not be trained on; its slot is free at once."""
        self._expect(self._entries[group_id], _Stage.IN_FLIGHT)
        del self._entries[group_id]
        self._discarded[reason] += 1
        self._discarded_tokens += num_tokens
        self._changed.notify()

    async def take_batch(self) -> list[ScoredGroup]:
        """Wait until the whole batch of the current version can be formed, and take it. Empty at the end of the run.

        Raises:
            StalledError: Not formed within the limit.
        """
        await self._wait_for_groups(lambda: choose_batch(self._order, self._state(), size=self._still_to_take()) is not None)
        chosen = choose_batch(self._order, self._state(), size=self._still_to_take())
        assert chosen is not None
        return [self._take(candidate) for candidate in chosen]

    async def take_some(self) -> list[ScoredGroup]:
        """Wait until at least one further group of the current batch may be taken, and take all that may. Empty when the batch is complete.

        Raises:
            StalledError: None within the limit.
        """
        await self._wait_for_groups(lambda: self._still_to_take() == 0 or self._order(self._state()) is not None)
        taken: list[ScoredGroup] = []
        while self._still_to_take() > 0 and (candidate := self._order(self._state())) is not None:
            taken.append(self._take(candidate))
        return taken

    def release_trained(self, version: int) -> None:
        """The weights of `version` are published: the groups trained into them are done, their slots free."""
        done = [group_id for group_id, entry in self._entries.items() if entry.stage is _Stage.TAKEN]
        for group_id in done:
            scored = self._entries.pop(group_id).scored
            assert scored is not None
            self._trained += 1
            self._trained_tokens += scored.num_tokens
        self._version = version
        self._changed.notify()

    def snapshot(self) -> Ledger:
        """The books, as they stand now.

        Raises:
            LedgerError: They do not balance.
        """
        settled = [entry.scored for entry in self._entries.values() if entry.scored is not None]
        ledger = Ledger(
            admitted=self._admitted,
            in_flight=len(self._entries) - len(settled),
            ready=len(settled),
            trained=self._trained,
            discarded=dict(self._discarded),
            ready_tokens=sum(scored.num_tokens for scored in settled),
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
        return [self._entries[group_id].group for group_id in sorted(self._entries)]

    def _place(self, group_id: int, prompt: Prompt) -> AdmittedGroup:
        due = deadline(version=self._version, max_staleness=self._limits.max_staleness)
        group = AdmittedGroup(group_id=group_id, prompt=prompt, version=self._version, deadline=due)
        self._entries[group_id] = _Entry(group=group, since=self._clock())
        return group

    def _may_admit(self) -> bool:
        return len(self._entries) < self._limits.slots and self._wants_more()

    def _wants_more(self) -> bool:
        limit = self._limits.max_groups
        return not self._prompts_ended and (limit is None or self._trained + len(self._entries) < limit)

    def _deadlines(self, *stages: _Stage) -> list[int]:
        return [entry.group.deadline for entry in self._entries.values() if entry.stage in stages]

    def _still_to_take(self) -> int:
        """Groups that the current batch still lacks; at the end of the run it takes what is left."""
        taken = len(self._deadlines(_Stage.TAKEN))
        missing = self._limits.groups_per_step - taken
        return missing if self._wants_more() else min(missing, len(self._entries) - taken)

    def _state(self) -> BatchState:
        return BatchState(
            version=self._version,
            groups_per_step=self._limits.groups_per_step,
            live=self._deadlines(*_Stage),
            taken=self._deadlines(_Stage.TAKEN),
            ready=[
                Candidate(group_id=group_id, deadline=entry.group.deadline, completed=entry.completed)
                for group_id, entry in self._entries.items()
                if entry.stage is _Stage.READY
            ],
        )

    def _take(self, candidate: Candidate) -> ScoredGroup:
        entry = self._entries[candidate.group_id]
        self._expect(entry, _Stage.READY)
        assert entry.scored is not None
        staleness = self._version - entry.scored.oldest_version
        if self._limits.bounds_every_token and staleness > self._limits.max_staleness:
            raise LedgerError(
                f"group {candidate.group_id} has a token of version {entry.scored.oldest_version}, {staleness} behind the trainer's "
                f"{self._version}, beyond max_staleness = {self._limits.max_staleness}"
            )
        entry.stage = _Stage.TAKEN
        return entry.scored

    async def _wait_for_groups(self, predicate: Callable[[], bool]) -> None:
        await limited(
            self._changed.wait_until(predicate),
            seconds=self._limits.stall_seconds,
            what=lambda: f"scored groups for the batch of version {self._version}; {self._describe()}",
        )

    def _expect(self, entry: _Entry, stage: _Stage) -> None:
        if entry.stage is not stage:
            raise LedgerError(f"group {entry.group.group_id} is {entry.stage.value}, expected {stage.value}")

    def _describe(self) -> str:
        now = self._clock()
        in_flight = [entry for entry in self._entries.values() if entry.stage is _Stage.IN_FLIGHT]
        oldest = ", ".join(f"group {entry.group.group_id} for {now - entry.since:.0f} s" for entry in in_flight[:5])
        ready = len(self._deadlines(_Stage.READY))
        return f"{len(in_flight)} groups in flight ({oldest or 'none'}), {ready} ready, {self._limits.slots} slots"
