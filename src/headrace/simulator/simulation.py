"""Runs the real controller over scripted parts: what a schedule would do, in virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from headrace.algorithms.advantages import group_scaled_advantages
from headrace.algorithms.credit import Credit
from headrace.algorithms.token_advantages import outcome_advantages
from headrace.buffer.group_buffer import BufferLimits, GroupBuffer
from headrace.controller.batches import BatchStream
from headrace.controller.checkpoints import CheckpointFolders
from headrace.controller.evaluation import Evaluator
from headrace.controller.pipeline import Limits, Parts, Pipeline
from headrace.controller.resume import RunCheckpoints, read_checkpoint, restore
from headrace.controller.rollouts import GroupRules, GroupRunner
from headrace.interfaces import Clock
from headrace.simulator.scripted_parts import (
    Faults,
    ScriptedEngine,
    ScriptedPrompts,
    ScriptedPublisher,
    ScriptedRewards,
    ScriptedTrainer,
    Timing,
)
from headrace.simulator.virtual_clock import run_virtually
from headrace.staleness.admission import max_slots
from headrace.staleness.consumption import ORDERS
from headrace.telemetry.events import Events, Sink
from headrace.types import Sampling

_CREDIT = Credit(advantages_of=partial(outcome_advantages, advantages_of=lambda rewards, _: group_scaled_advantages(rewards)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated run."""

    groups_per_step: int = 4
    num_generations: int = 4
    max_staleness: int = 1
    slots: int | None = None
    """None takes all that the bound allows."""
    order: Literal["deadline", "completion"] = "deadline"
    streams: bool = False
    num_prompts: int = 1000
    num_epochs: int | None = None
    last_version: int | None = 10
    num_engines: int = 1
    max_concurrent_requests: int = 16
    num_held_out: int = 0
    token_budget: int | None = None
    """Tokens of a micro-batch. None: as many as the longest group."""
    checkpoint_every: int = 1_000_000
    max_failed_groups: int = 1_000_000
    max_groups_without_signal: int | None = None
    """Groups with equal rewards are discarded, and so many in a row end the run; None trains on them."""
    stall_seconds: float = 900.0
    seed: int = 0
    timing: Timing = field(default_factory=Timing)
    faults: Faults = field(default_factory=Faults)


def simulate(scenario: Scenario, run_folder: Path, sinks: Sequence[Sink], *, resume: bool = False) -> None:
    """Run a scenario to its end under a virtual clock, giving every event to the sinks.

    Args:
        scenario: What to run.
        run_folder: Where its checkpoints go.
        sinks: What sees the events.
        resume: Go on from the folder's last checkpoint.

    Raises:
        HeadraceError: Whatever ended the run.
    """
    run_virtually(simulate_on_this_loop(scenario, run_folder, sinks, resume=resume))


async def simulate_on_this_loop(scenario: Scenario, run_folder: Path, sinks: Sequence[Sink], *, resume: bool = False) -> None:
    """The same on whatever loop runs: under a real one, the scripted parts take real time."""
    folders = CheckpointFolders(run_folder, keep_last=2)
    latest = folders.latest() if resume else None
    resumed = None if latest is None else read_checkpoint(latest)
    start = asyncio.get_running_loop().time() - (0.0 if resumed is None else resumed.seconds)

    def clock() -> float:
        return asyncio.get_running_loop().time() - start

    events = Events(clock, sinks)
    parts = _assemble(scenario, folders, events, clock)
    groups = [] if resumed is None else await restore(resumed, trainer=parts.trainer, buffer=parts.buffer, prompts=parts.prompts)
    try:
        await Pipeline(parts, _limits(scenario), events=events, clock=clock, resumed=groups).run()
    finally:
        events.close()


def _slots(scenario: Scenario) -> int:
    most = max_slots(max_staleness=scenario.max_staleness, groups_per_step=scenario.groups_per_step)
    return most if scenario.slots is None else scenario.slots


def _limits(scenario: Scenario) -> Limits:
    return Limits(
        slots=_slots(scenario),
        max_staleness=scenario.max_staleness,
        groups_per_step=scenario.groups_per_step,
        last_version=scenario.last_version,
        stall_seconds=scenario.stall_seconds,
    )


def _buffer(scenario: Scenario, clock: Clock) -> GroupBuffer:
    limits = BufferLimits(
        slots=_slots(scenario),
        groups_per_step=scenario.groups_per_step,
        max_staleness=scenario.max_staleness,
        bounds_every_token=scenario.order == "deadline",
        max_groups=None if scenario.last_version is None else scenario.last_version * scenario.groups_per_step,
        stall_seconds=scenario.stall_seconds,
    )
    return GroupBuffer(limits, order=ORDERS[scenario.order], clock=clock)


def _rules(scenario: Scenario) -> GroupRules:
    most = scenario.max_groups_without_signal
    return GroupRules(
        min_scored=2,
        max_failed_groups=scenario.max_failed_groups,
        has_signal=None if most is None else _CREDIT.has_signal,
        max_groups_without_signal=most or 1,
    )


def _assemble(scenario: Scenario, folders: CheckpointFolders, events: Events, clock: Clock) -> Parts:
    timing, faults = scenario.timing, scenario.faults
    engines = [
        ScriptedEngine(timing, faults, seed=scenario.seed + index, max_concurrent_requests=scenario.max_concurrent_requests)
        for index in range(scenario.num_engines)
    ]
    rewards = ScriptedRewards(timing, faults, seed=scenario.seed)
    trainer = ScriptedTrainer(timing, faults)
    prompts = ScriptedPrompts(scenario.num_prompts, num_epochs=scenario.num_epochs)
    buffer = _buffer(scenario, clock)
    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_completion_length=timing.max_length)
    return Parts(
        prompts=prompts,
        engines=engines,
        runner=GroupRunner(
            engines=engines,
            rewards=rewards,
            buffer=buffer,
            events=events,
            sampling=sampling,
            num_generations=scenario.num_generations,
            seed=scenario.seed,
            rules=_rules(scenario),
            stall_seconds=scenario.stall_seconds,
        ),
        buffer=buffer,
        batches=BatchStream(
            buffer,
            credit=_CREDIT,
            shadow_credits={},
            token_budget=scenario.token_budget or timing.max_length * scenario.num_generations + 1,
            num_minibatches=1,
            streams=scenario.streams,
        ),
        trainer=trainer,
        weights=ScriptedPublisher(engines),
        evaluator=Evaluator(
            [prompts.get(epoch=0, row=scenario.num_prompts + row) for row in range(scenario.num_held_out)],
            engines=engines,
            rewards=rewards,
            events=events,
            clock=clock,
            sampling=sampling,
            num_rollouts=1,
            every_steps=0,
            seed=scenario.seed,
            stall_seconds=scenario.stall_seconds,
        ),
        checkpoints=RunCheckpoints(
            folders,
            every_steps=scenario.checkpoint_every,
            trainer=trainer,
            buffer=buffer,
            prompts=prompts,
            events=events,
            clock=clock,
            extra_state=dict,
            save_beside=lambda folder: None,
        ),
    )
