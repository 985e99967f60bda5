"""From a recipe to the parts of a run in one process."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.buffer.group_buffer import BufferLimits, GroupBuffer
from headrace.config.generation import EvaluationSection, SamplingSection
from headrace.config.recipe import Recipe
from headrace.config.schedule import AsyncSchedule
from headrace.config.teacher import SelfTeacher
from headrace.controller.batches import BatchStream
from headrace.controller.checkpoints import CheckpointFolders
from headrace.controller.evaluation import Evaluator
from headrace.controller.pipeline import Limits, Parts
from headrace.controller.resume import RunCheckpoints
from headrace.controller.rollouts import GroupRunner
from headrace.interfaces import Clock, LogprobScorer, RewardService, RolloutEngine, Trainer, WeightPublisher
from headrace.launch.credit import make_group_rules
from headrace.launch.inputs import Inputs
from headrace.launch.model_loading import stop_token_ids
from headrace.launch.policy import Policy, autocast_dtype, engine_copy
from headrace.launch.shadow import make_shadows
from headrace.launch.threads import ThreadShares
from headrace.rollout.embedded_engine import EmbeddedEngine
from headrace.staleness.consumption import ORDERS
from headrace.telemetry.events import Events
from headrace.training.local_trainer import LocalTrainer
from headrace.training.policy_trainer import PolicyTrainer
from headrace.training.snapshot_scorer import SnapshotScorer
from headrace.types import Sampling
from headrace.weight_sync.in_process import InProcessPublisher
from headrace.weight_sync.snapshots import SnapshottingPublisher


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts with threads or processes of their own, to be closed at the end."""

    teacher: LogprobScorer | None = None
    reference: LogprobScorer | None = None
    engine: RolloutEngine
    trainer: Trainer
    rewards: RewardService

    async def close(self) -> None:
        """Stop generation first, then what it feeds."""
        await self.engine.close()
        await self.rewards.close()
        for scorer in (self.teacher, self.reference):
            if scorer is not None:
                await scorer.close()
        await self.trainer.close()


def make_engine(recipe: Recipe, policy: Policy, threads: ThreadShares) -> EmbeddedEngine:
    """The embedded engine, with its own copy of the policy."""
    return EmbeddedEngine(
        engine_copy(recipe, policy.model),
        tokenizer=policy.tokenizer,
        stop_token_ids=stop_token_ids(policy.tokenizer, policy.model),
        max_concurrent_sequences=recipe.engine.max_concurrent_sequences,
        max_sequence_length=policy.max_sequence_length,
        interruption=recipe.schedule.interruption if isinstance(recipe.schedule, AsyncSchedule) else "finish",
        threads=threads.engine,
        stall_seconds=recipe.run.stall_seconds,
    )


def make_trainer(recipe: Recipe, inputs: Inputs, policy: Policy, threads: ThreadShares) -> LocalTrainer:
    """The trainer, which changes the policy's weights in place; with a KL term it keeps a frozen copy of them as they are now.

    The base of an adapter is such a copy already.
    """
    trainer = PolicyTrainer(
        policy.model,
        algorithm=recipe.algorithm,
        training=recipe.training,
        temperature=recipe.sampling.temperature,
        max_completion_length=recipe.sampling.max_completion_length,
        total_steps=recipe.training.num_steps(len(policy.prompts.train)),
        autocast_dtype=autocast_dtype(recipe),
        reference=copy.deepcopy(policy.model) if recipe.algorithm.has_kl_loss and recipe.lora is None else None,
        token_losses=inputs.token_losses,
        critic_backbone=policy.critic_backbone,
        shadows=make_shadows(recipe, inputs.shadows),
    )
    return LocalTrainer(trainer, threads=threads.trainer)


def make_limits(recipe: Recipe) -> Limits:
    """The schedule's numbers."""
    return Limits(
        slots=recipe.slots,
        max_staleness=recipe.schedule.max_staleness,
        groups_per_step=recipe.training.prompts_per_step,
        last_version=recipe.training.max_steps,
        stall_seconds=recipe.run.stall_seconds,
    )


def make_buffer(recipe: Recipe, clock: Clock) -> GroupBuffer:
    """An empty buffer with the schedule's limits."""
    order = recipe.schedule.order if isinstance(recipe.schedule, AsyncSchedule) else "deadline"
    last_version = recipe.training.max_steps
    limits = BufferLimits(
        slots=recipe.slots,
        groups_per_step=recipe.training.prompts_per_step,
        max_staleness=recipe.schedule.max_staleness,
        bounds_every_token=order == "deadline",
        max_groups=None if last_version is None else last_version * recipe.training.prompts_per_step,
        stall_seconds=recipe.run.stall_seconds,
    )
    return GroupBuffer(limits, order=ORDERS[order], clock=clock)


def make_parts(
    recipe: Recipe,
    inputs: Inputs,
    policy: Policy,
    services: Services,
    *,
    folders: CheckpointFolders,
    events: Events,
    clock: Clock,
    summary_state: Callable[[], Mapping[str, Any]],
    saved_version: int | None,
) -> Parts:
    """Everything that the pipeline drives."""
    buffer = make_buffer(recipe, clock)
    return Parts(
        prompts=policy.prompts.train,
        engines=[services.engine],
        runner=_make_runner(recipe, inputs, services, buffer, events),
        buffer=buffer,
        batches=BatchStream(
            buffer,
            credit=inputs.credit,
            shadow_credits=inputs.shadows.credits,
            token_budget=recipe.training.token_budget,
            num_minibatches=recipe.algorithm.num_minibatches,
            streams=recipe.streams,
        ),
        trainer=services.trainer,
        weights=_make_publisher(recipe, services),
        evaluator=make_evaluator(recipe, policy, services.engine, services.rewards, events=events, clock=clock),
        checkpoints=RunCheckpoints(
            folders,
            every_steps=recipe.checkpoint.every_steps,
            trainer=services.trainer,
            buffer=buffer,
            prompts=policy.prompts.train,
            events=events,
            clock=clock,
            extra_state=summary_state,
            save_beside=partial(_save_beside, policy, services.teacher),
            saved_version=saved_version,
        ),
    )


def _make_publisher(recipe: Recipe, services: Services) -> WeightPublisher:
    publisher = InProcessPublisher(services.trainer, [services.engine])
    if not isinstance(recipe.teacher, SelfTeacher):
        return publisher
    assert isinstance(services.teacher, SnapshotScorer), "a teacher of type 'self' keeps snapshots"
    return SnapshottingPublisher(
        publisher, services.trainer, take_snapshot=services.teacher.take_snapshot, every_steps=recipe.teacher.snapshot_every_steps
    )


def _save_beside(policy: Policy, teacher: LogprobScorer | None, folder: Path) -> None:
    policy.tokenizer.save_pretrained(folder)
    if isinstance(teacher, SnapshotScorer):
        teacher.save(folder)


def make_evaluator(
    recipe: Recipe, policy: Policy, engine: RolloutEngine, rewards: RewardService, *, events: Events, clock: Clock
) -> Evaluator:
    """Evaluation of the held-out prompts, with its own sampling."""
    evaluation = recipe.evaluation
    return Evaluator(
        policy.prompts.held_out,
        engines=[engine],
        rewards=rewards,
        events=events,
        clock=clock,
        sampling=_sampling(recipe, evaluation),
        num_rollouts=evaluation.num_rollouts,
        every_steps=evaluation.every_steps,
        seed=recipe.run.seed,
        stall_seconds=recipe.run.stall_seconds,
    )


def _make_runner(recipe: Recipe, inputs: Inputs, services: Services, buffer: GroupBuffer, events: Events) -> GroupRunner:
    return GroupRunner(
        engines=[services.engine],
        rewards=services.rewards,
        buffer=buffer,
        events=events,
        sampling=_sampling(recipe, recipe.sampling),
        num_generations=recipe.algorithm.num_generations,
        seed=recipe.run.seed,
        rules=make_group_rules(recipe, inputs.credit),
        stall_seconds=recipe.run.stall_seconds,
        teacher=services.teacher,
        reference=services.reference,
    )


def _sampling(recipe: Recipe, section: SamplingSection | EvaluationSection) -> Sampling:
    return Sampling(
        temperature=section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        max_completion_length=section.max_completion_length or recipe.sampling.max_completion_length,
        stop_strings=tuple(recipe.sampling.stop_strings),
    )
