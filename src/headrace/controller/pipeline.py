"""The loop: admission, groups under way, and training, for every schedule.

    admission   waits for: a free slot            woken by: publication, discard     starts: a group task
    group task  waits for: engine, rewards        woken by: their answers            fills: the buffer
    training    waits for: groups it may take     woken by: a scored group           frees: slots, after publication

The training loop is the only finite one: when it ends, the others are cancelled; when any of them fails, it is.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.buffer.group_buffer import GroupBuffer
from headrace.buffer.signal import limited
from headrace.controller.batches import BatchStream
from headrace.controller.evaluation import Evaluator
from headrace.controller.rollouts import GroupRunner
from headrace.controller.supervision import Supervisor
from headrace.controller.timing import PhaseTimer
from headrace.controller.untrained import untrained
from headrace.interfaces import Clock, PromptSource, RolloutEngine, Trainer, WeightPublisher
from headrace.telemetry.events import (
    Events,
    GroupAdmitted,
    MicroBatchTrained,
    OptimizerStepFinished,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsPublished,
)
from headrace.types import AdmittedGroup, EngineStats, MicroBatch, StepReport

T = TypeVar("T")


class Checkpoints(Protocol):
    """Where the pipeline's state is kept; see `controller.resume`."""

    async def save_if_due(self, version: int) -> None:
        """Save when the schedule says so."""
        ...

    async def save(self, version: int) -> None:
        """Save now, unless this version is saved already."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The run's numbers. `last_version` None trains until the prompts end."""

    slots: int
    max_staleness: int
    groups_per_step: int
    last_version: int | None
    stall_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the pipeline drives."""

    prompts: PromptSource
    engines: Sequence[RolloutEngine]
    runner: GroupRunner
    buffer: GroupBuffer
    batches: BatchStream
    trainer: Trainer
    weights: WeightPublisher
    evaluator: Evaluator
    checkpoints: Checkpoints


class Pipeline:
    """One run, from its first prompt to its last step."""

    def __init__(self, parts: Parts, limits: Limits, *, events: Events, clock: Clock, resumed: Sequence[AdmittedGroup] = ()) -> None:
        """Put the parts together; `resumed` are the groups that were live in the checkpoint, already back in the buffer."""
        self._parts = parts
        self._limits = limits
        self._events = events
        self._timer = PhaseTimer(clock)
        self._resumed = resumed
        self._stop_requested = False

    def request_stop(self) -> None:
        """Finish the current step, save, and end."""
        self._stop_requested = True

    async def run(self) -> None:
        """Train to the end, or until a stop is requested.

        Raises:
            RewardError: The prompts ended without a single step, since every group was discarded.
            HeadraceError: Whatever ended the run early, as itself.
        """
        self._announce()
        await self._publish(self._parts.trainer.version)
        async with Supervisor() as tasks:
            tasks.start("admission", self._admit(tasks))
            await self._train()

    async def _train(self) -> None:
        parts = self._parts
        if parts.trainer.version == 0:
            await parts.evaluator.run(0)
        while self._has_next_step():
            version = parts.trainer.version
            self._timer.enter("waiting_for_groups")
            async for micro_batch in parts.batches.for_version(version):
                await self._accumulate(micro_batch)
            if not parts.batches.groups:
                if version == 0 and not self._stop_requested:
                    raise untrained(parts.buffer.snapshot())
                break
            report = await self._step(version)
            await self._publish(report.version)
            parts.buffer.release_trained(report.version)
            self._report(version, report)
            if self._has_next_step():
                await parts.evaluator.run_if_due(report.version)
                await parts.checkpoints.save_if_due(report.version)
        await self._end()

    def _has_next_step(self) -> bool:
        last = self._limits.last_version
        return not self._stop_requested and (last is None or self._parts.trainer.version < last)

    async def _end(self) -> None:
        version = self._parts.trainer.version
        await self._parts.checkpoints.save(version)
        if not self._stop_requested:
            await self._parts.evaluator.run(version)
        self._events.emit(RunFinished(version=version, interrupted=self._stop_requested, ledger=self._parts.buffer.snapshot()))

    async def _admit(self, tasks: Supervisor) -> None:
        """Give free slots to prompts, resumed ones first, until the prompts end."""
        for group in self._resumed:
            self._start(group, tasks)
        while True:
            await self._parts.buffer.wait_for_slot()
            prompt = self._parts.prompts.next_prompt()
            if prompt is None:
                self._parts.buffer.end_of_prompts()
                return
            self._start(self._parts.buffer.admit(prompt), tasks)

    def _start(self, group: AdmittedGroup, tasks: Supervisor) -> None:
        prompt = group.prompt
        self._events.emit(
            GroupAdmitted(group_id=group.group_id, epoch=prompt.epoch, row=prompt.row, version=group.version, deadline=group.deadline)
        )
        tasks.start(f"group {group.group_id}", self._parts.runner.run(group))

    async def _accumulate(self, micro_batch: MicroBatch) -> None:
        waited = self._timer.enter("computing")
        await self._limited(self._parts.trainer.accumulate(micro_batch), f"a micro-batch of version {micro_batch.version}")
        seconds = self._timer.enter("waiting_for_groups")
        self._events.emit(
            MicroBatchTrained(
                version=micro_batch.version,
                group_ids=[row.group_id for row in micro_batch.rows],
                num_tokens=sum(row.num_tokens for row in micro_batch.rows),
                staleness=micro_batch.version - micro_batch.oldest_version,
                waited=waited,
                seconds=seconds,
            )
        )

    async def _step(self, version: int) -> StepReport:
        waited = self._timer.enter("computing")
        report = await self._limited(self._parts.trainer.step(), f"the optimizer step of version {version}")
        self._events.emit(OptimizerStepFinished(version=report.version, waited=waited, seconds=self._timer.enter("other")))
        return report

    async def _publish(self, version: int) -> None:
        self._timer.enter("publishing")
        before = [engine.stats().loading_seconds for engine in self._parts.engines]
        await self._limited(self._parts.weights.publish(version), f"the engines to take over version {version}")
        loading = max(engine.stats().loading_seconds - start for engine, start in zip(self._parts.engines, before, strict=True))
        self._events.emit(WeightsPublished(version=version, seconds=self._timer.enter("other"), loading_seconds=loading))

    async def _limited(self, work: Awaitable[T], what: str) -> T:
        return await limited(work, seconds=self._limits.stall_seconds, what=lambda: what)

    def _report(self, version: int, report: StepReport) -> None:
        self._events.emit(
            StepFinished(
                trained_at=version,
                report=report,
                groups=self._parts.batches.groups,
                ledger=self._parts.buffer.snapshot(),
                timings=self._timer.finish_step(),
                engine=total_stats([engine.stats() for engine in self._parts.engines]),
            )
        )

    def _announce(self) -> None:
        self._events.emit(
            RunStarted(
                version=self._parts.trainer.version,
                last_version=self._limits.last_version,
                slots=self._limits.slots,
                max_staleness=self._limits.max_staleness,
                prompts_per_step=self._limits.groups_per_step,
            )
        )


def total_stats(stats: Sequence[EngineStats]) -> EngineStats:
    """The engines' totals added up."""
    return EngineStats(
        generated_tokens=sum(each.generated_tokens for each in stats),
        prefilled_tokens=sum(each.prefilled_tokens for each in stats),
        busy_seconds=sum(each.busy_seconds for each in stats),
        loading_seconds=sum(each.loading_seconds for each in stats),
        interruptions=sum(each.interruptions for each in stats),
    )
