"""From ready groups to the micro-batches of a step: whole batches, or streaming."""

from collections.abc import AsyncIterator, Mapping, Sequence

from headrace.batching.micro_batches import plan_micro_batches
from headrace.batching.samples import CreditFunction, with_advantages
from headrace.buffer.group_buffer import GroupBuffer
from headrace.telemetry.events import TrainedGroup
from headrace.types import MicroBatch


class BatchStream:
    """Micro-batches of one step after another.

    Streaming yields a micro-batch as soon as any group may be trained on; otherwise all of them follow once the
    batch is complete. The result is the same, because the trainer adds up un-normalised gradients.
    """

    def __init__(
        self,
        buffer: GroupBuffer,
        *,
        credit: CreditFunction,
        shadow_credits: Mapping[str, CreditFunction],
        token_budget: int,
        num_minibatches: int,
        streams: bool,
    ) -> None:
        self._buffer = buffer
        self._credit = credit
        self._shadow_credits = shadow_credits
        self._token_budget = token_budget
        self._num_minibatches = num_minibatches
        self._streams = streams
        self._groups: list[TrainedGroup] = []

    async def for_version(self, version: int) -> AsyncIterator[MicroBatch]:
        """The micro-batches that the trainer trains on at `version`. `groups` stays empty at the end of the prompts."""
        self._groups = []
        while scored := await (self._buffer.take_some() if self._streams else self._buffer.take_batch()):
            groups = with_advantages(scored, credit=self._credit, shadow_credits=self._shadow_credits)
            self._groups += groups
            for micro_batch in plan_micro_batches(
                groups, version=version, token_budget=self._token_budget, num_minibatches=self._num_minibatches
            ):
                yield micro_batch
            if not self._streams:
                return

    @property
    def groups(self) -> Sequence[TrainedGroup]:
        """The groups of the step so far, in the order of their admission."""
        return sorted(self._groups, key=lambda group: group.scored.group.group_id)
