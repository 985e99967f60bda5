"""A whole run: check what the user gave, load, train, and leave the results in the run folder."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.config.recipe import Recipe
from headrace.controller.checkpoints import CheckpointFolders
from headrace.controller.pipeline import Pipeline
from headrace.controller.resume import ResumedRun, read_checkpoint, restore
from headrace.errors import DataError
from headrace.launch.assemble import Services, make_engine, make_evaluator, make_limits, make_parts, make_trainer
from headrace.launch.inputs import Inputs, check_inputs, inputs_of_recipe, reward_service
from headrace.launch.interrupts import graceful_interrupts
from headrace.launch.memory import rare_collections
from headrace.launch.policy import Policy, load_for_evaluation, load_policy_and_prompts
from headrace.launch.run_folder import RunFolder
from headrace.launch.scorers import make_reference, make_teacher
from headrace.launch.sinks import RunSinks, make_sinks
from headrace.launch.threads import thread_shares
from headrace.telemetry.curves import plot_curves
from headrace.telemetry.events import EvaluationFinished, Events
from headrace.telemetry.run_files import disk_errors
from headrace.training.checkpoint import save_policy
from headrace.training.snapshot_scorer import SnapshotScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run left behind."""

    folder: Path
    summary: Mapping[str, Any]
    """The contents of `summary.json`."""

    @property
    def model_folder(self) -> Path:
        """The trained model, a Hugging Face folder; there once the run has finished."""
        return RunFolder(self.folder).final


def train(recipe: Recipe, *, base_folder: Path, resume: bool = False, console: Console | None = None) -> RunResult:
    """Run a recipe.

    Args:
        recipe: The recipe.
        base_folder: The recipe's folder, which relative paths in it are looked up in first.
        resume: Go on from the run folder's last checkpoint; without one, start.
        console: Where progress is shown.

    Raises:
        UserError: Something the user gave cannot work.
        HeadraceError: The run broke.
    """
    folder = RunFolder(Path(recipe.run.output_dir))
    with folder.opened(recipe, resume=resume):
        inputs = inputs_of_recipe(recipe, base_folder=base_folder)
        return train_on(recipe, inputs, folder, console=console or Console())


def train_on(recipe: Recipe, inputs: Inputs, folder: RunFolder, *, console: Console) -> RunResult:
    """Run a recipe on inputs that are already read, in a folder that is already opened."""
    folders = CheckpointFolders(folder.path, keep_last=recipe.checkpoint.keep_last)
    latest = folders.latest()
    resumed = None if latest is None else read_checkpoint(latest)
    if (done := _finished_summary(folder, recipe, inputs, resumed)) is not None:
        console.print(f"{folder.path} has finished its {done['steps']} steps already; its results are in {folder.summary}")
        return RunResult(folder=folder.path, summary=done)
    check_inputs(inputs, recipe)
    version, summary_state = (0, None) if resumed is None else (resumed.version, resumed.extra)
    sinks = make_sinks(recipe, folder, console, version=version, summary_state=summary_state)
    try:
        policy = load_policy_and_prompts(recipe, inputs.rows, console=console)
        _say_what_was_left_out(policy, console)
        asyncio.run(_train(recipe, inputs, policy, folder, folders, sinks, resumed))
    finally:
        sinks.close()
    return RunResult(folder=folder.path, summary=sinks.summary.summary())


async def _train(
    recipe: Recipe,
    inputs: Inputs,
    policy: Policy,
    folder: RunFolder,
    folders: CheckpointFolders,
    sinks: RunSinks,
    resumed: ResumedRun | None,
) -> None:
    start = time.monotonic() - (0.0 if resumed is None else resumed.seconds)

    def clock() -> float:
        return time.monotonic() - start

    events = Events(clock, sinks.all)
    threads = thread_shares(recipe)
    services = Services(
        # Before the trainer: these copy the policy as it is now.
        teacher=make_teacher(recipe, policy, threads),
        reference=make_reference(recipe, policy, threads),
        engine=make_engine(recipe, policy, threads),
        trainer=make_trainer(recipe, inputs, policy, threads),
        rewards=reward_service(inputs, recipe),
    )
    try:
        parts = make_parts(
            recipe,
            inputs,
            policy,
            services,
            folders=folders,
            events=events,
            clock=clock,
            summary_state=sinks.summary.state,
            saved_version=None if resumed is None else resumed.version,
        )
        groups = [] if resumed is None else await restore(resumed, trainer=parts.trainer, buffer=parts.buffer, prompts=parts.prompts)
        if resumed is not None and isinstance(services.teacher, SnapshotScorer):
            await services.teacher.load(resumed.folder)
        pipeline = Pipeline(parts, make_limits(recipe), events=events, clock=clock, resumed=groups)
        with rare_collections(), graceful_interrupts(stop=_stop(pipeline, sinks), abandon=sinks.progress.close):
            await pipeline.run()
        _leave_results(policy, folder, sinks)
    finally:
        await services.close()


def _stop(pipeline: Pipeline, sinks: RunSinks) -> Callable[[], None]:
    def stop() -> None:
        sinks.progress.warn("finishing this step, then saving; press Ctrl-C again to end at once")
        pipeline.request_stop()

    return stop


def _leave_results(policy: Policy, folder: RunFolder, sinks: RunSinks) -> None:
    summary = sinks.summary.summary()
    if summary["finished"]:
        _save_final(policy, folder.final)
    sinks.summary.write(folder.summary)
    if summary["steps"]:
        plot_curves(folder.metrics, folder.curves, title=folder.path.name)


def _save_final(policy: Policy, final: Path) -> None:
    partial = final.with_name("final.partial")
    with disk_errors(final):
        shutil.rmtree(partial, ignore_errors=True)
        save_policy(policy.model, partial)
        policy.tokenizer.save_pretrained(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)


def _finished_summary(folder: RunFolder, recipe: Recipe, inputs: Inputs, resumed: ResumedRun | None) -> dict[str, Any] | None:
    """The summary of a run that has nothing left to do, as far as that can be told without a tokenizer."""
    if resumed is None or not folder.summary.is_file():
        return None
    summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    last = recipe.training.num_steps(len(inputs.rows) - recipe.data.held_out)
    return summary if summary["finished"] and resumed.version >= last else None


def _say_what_was_left_out(policy: Policy, console: Console) -> None:
    if policy.prompts.num_too_long:
        console.print(
            f"{policy.prompts.num_too_long} of {policy.prompts.num_rows} prompts are longer than data.max_prompt_length and left out"
        )


def evaluate(recipe: Recipe, *, base_folder: Path, model_folder: Path) -> EvaluationFinished:
    """Answer a recipe's held-out prompts with another model, for instance a run's `final` or a checkpoint.

    Args:
        recipe: The recipe.
        base_folder: The recipe's folder.
        model_folder: A Hugging Face model folder, or an adapter's.

    Raises:
        UserError: Something the user gave cannot work.
    """
    if recipe.data.held_out == 0:
        raise DataError("data.held_out = 0, so there is nothing to evaluate on; set it to a number of rows")
    inputs = inputs_of_recipe(recipe, base_folder=base_folder)
    check_inputs(inputs, recipe)
    policy = load_for_evaluation(recipe, inputs.rows, model_path=str(model_folder))
    return asyncio.run(_evaluate(recipe, inputs, policy))


async def _evaluate(recipe: Recipe, inputs: Inputs, policy: Policy) -> EvaluationFinished:
    engine, rewards = make_engine(recipe, policy, thread_shares(recipe)), reward_service(inputs, recipe)
    try:
        evaluator = make_evaluator(recipe, policy, engine, rewards, events=Events(time.monotonic), clock=time.monotonic)
        result = await evaluator.run(0)
        assert result is not None, "held-out prompts were checked"
        return result
    finally:
        await engine.close()
        await rewards.close()
