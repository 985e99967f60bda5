"""What a recipe amounts to, computed before anything is loaded."""

from dataclasses import dataclass

from headrace.config import algorithm as parts
from headrace.config.algorithm_formulas import loss_formula
from headrace.config.memory import MemoryEstimate, estimate_memory
from headrace.config.model_facts import ModelFacts
from headrace.config.recipe import Recipe
from headrace.config.schedule import AsyncSchedule
from headrace.errors import DataError

_LARGE_LEARNING_RATE = 1e-4
"""AdamW on all weights of a language model; published recipes stay below 2e-5."""
_STALENESS_TO_CORRECT = 4
"""From here on, AReaL (arXiv 2505.24298, Table 2) measures a clear loss without the decoupled objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe's consequences: numbers, formulas as text, and what is likely to go wrong."""

    completions_per_step: int
    completions_per_update: int
    updates_per_step: int
    slots: int
    worst_staleness: int | None
    """Largest staleness of a trained token; None when nothing bounds it."""
    staleness_reason: str
    loss: str
    denominator: str
    sampling: str
    evaluation: str
    num_prompts: int | None
    """Training prompts before too long ones are left out; None when the data could not be counted."""
    steps: int | None
    """Training steps, when no group is discarded; None when they follow from a data set that could not be counted."""
    prompts_of_last_step: int | None
    """Fewer than of the others when the prompts end before it is full; None like `steps`."""
    epochs: float | None
    """Passes over the training prompts."""
    memory: MemoryEstimate | None
    """None when the model's sizes are not known."""
    warnings: tuple[str, ...]


def make_plan(
    recipe: Recipe,
    *,
    model: ModelFacts | None = None,
    teacher: ModelFacts | None = None,
    critic: ModelFacts | None = None,
    num_rows: int | None = None,
) -> Plan:
    """Work out a plan.

    Args:
        recipe: A valid recipe.
        model: The model's sizes, when its folder is on this machine.
        teacher: Those of a local teacher, likewise.
        critic: Those of the critic's own model, likewise.
        num_rows: Rows of the data set, when they could be counted.

    Raises:
        DataError: No row is left for training.
    """
    num_prompts = None if num_rows is None else num_rows - recipe.data.held_out
    steps = _steps(recipe, num_prompts)
    return Plan(
        completions_per_step=recipe.completions_per_step,
        completions_per_update=recipe.completions_per_step // recipe.algorithm.num_minibatches,
        updates_per_step=recipe.algorithm.num_minibatches,
        slots=recipe.slots,
        worst_staleness=_worst_staleness(recipe),
        staleness_reason=_staleness_reason(recipe),
        loss=loss_formula(recipe.algorithm),
        denominator=_denominator(recipe),
        sampling=_drawn(recipe.sampling.temperature, 1.0, 0, recipe.sampling.max_completion_length),
        evaluation=_evaluation(recipe),
        num_prompts=num_prompts,
        steps=steps,
        prompts_of_last_step=_prompts_of_last_step(recipe, num_prompts),
        epochs=_epochs(recipe, num_prompts),
        memory=None if model is None else estimate_memory(recipe, model, teacher=teacher, critic=critic),
        warnings=tuple(_warnings(recipe, model)),
    )


def _steps(recipe: Recipe, num_prompts: int | None) -> int | None:
    if num_prompts is None:
        return recipe.training.max_steps
    if num_prompts < 1:
        rows = num_prompts + recipe.data.held_out
        raise DataError(f"the data has {rows} rows and data.held_out = {recipe.data.held_out} leaves none to train on; lower data.held_out")
    return recipe.training.num_steps(num_prompts)


def _prompts_of_last_step(recipe: Recipe, num_prompts: int | None) -> int | None:
    training = recipe.training
    if training.max_steps is not None:
        return training.prompts_per_step
    return None if num_prompts is None else (training.num_train_epochs * num_prompts - 1) % training.prompts_per_step + 1


def _epochs(recipe: Recipe, num_prompts: int | None) -> float | None:
    training = recipe.training
    if num_prompts is None:
        return None
    return training.num_train_epochs if training.max_steps is None else training.max_steps * training.prompts_per_step / num_prompts


def _worst_staleness(recipe: Recipe) -> int | None:
    by_completion = (
        isinstance(recipe.schedule, AsyncSchedule) and recipe.schedule.order == "completion" and recipe.schedule.max_staleness > 0
    )
    return None if by_completion else recipe.schedule.max_staleness


def _staleness_reason(recipe: Recipe) -> str:
    schedule = recipe.schedule
    if schedule.type == "sync":
        return "a batch is generated, then trained on"
    if schedule.type == "periodic":
        return "training streams over the batch that is being generated, with one update at its end"
    if schedule.order == "completion":
        return f"groups are trained in order of completion, so that {schedule.max_staleness} bounds their number, not their age"
    limit = f"{schedule.max_staleness} step{'' if schedule.max_staleness == 1 else 's'}"
    return f"no group is trained on later than {limit} after its admission"


def _denominator(recipe: Recipe) -> str:
    completions = recipe.completions_per_step // recipe.algorithm.num_minibatches
    match recipe.algorithm.denominator:
        case "tokens":
            return "completion tokens of the update"
        case "sequences":
            return f"each completion's own tokens, then {completions} completions"
        case "constant":
            limit = recipe.sampling.max_completion_length
            return f"{completions} completions · {limit} tokens = {completions * limit}"


def _evaluation(recipe: Recipe) -> str:
    evaluation = recipe.evaluation
    if recipe.data.held_out == 0:
        return "none, because data.held_out = 0"
    length = evaluation.max_completion_length or recipe.sampling.max_completion_length
    drawn = _drawn(evaluation.temperature, evaluation.top_p, evaluation.top_k, length)
    when = f"every {evaluation.every_steps} steps, before and after" if evaluation.every_steps else "before and after"
    each = "one completion" if evaluation.num_rollouts == 1 else f"{evaluation.num_rollouts} completions"
    return f"{recipe.data.held_out} held-out prompts, {each} each, {drawn}; {when}"


def _drawn(temperature: float, top_p: float, top_k: int, max_completion_length: int) -> str:
    if temperature == 0:
        return f"greedy, at most {max_completion_length} tokens"
    cut = "whole vocabulary" if top_p == 1 and top_k == 0 else f"top_p {top_p:g}, top_k {top_k}"
    return f"temperature {temperature:g}, {cut}, at most {max_completion_length} tokens"


def _warnings(recipe: Recipe, model: ModelFacts | None) -> list[str]:
    found = (
        _sample_above_budget(recipe),
        _beyond_positions(recipe, model),
        _engine_too_small(recipe),
        _large_learning_rate(recipe),
        _uncorrected_staleness(recipe),
        _course_cut_short(recipe),
    )
    return [warning for warning in found if warning is not None]


def _longest_sample(recipe: Recipe) -> int:
    return recipe.data.max_prompt_length + recipe.sampling.max_completion_length


def _sample_above_budget(recipe: Recipe) -> str | None:
    budget, longest = recipe.training.token_budget, _longest_sample(recipe)
    if budget >= longest:
        return None
    return (
        f"training.token_budget = {budget} is less than data.max_prompt_length + sampling.max_completion_length = {longest}: "
        "a sample that long ends the run; raise the budget or lower a limit"
    )


def _beyond_positions(recipe: Recipe, model: ModelFacts | None) -> str | None:
    longest = _longest_sample(recipe)
    if model is None or model.max_positions is None or longest <= model.max_positions:
        return None
    return (
        f"prompt and completion may have {longest} tokens together, but the model is made for {model.max_positions}; lower "
        "data.max_prompt_length or sampling.max_completion_length"
    )


def _engine_too_small(recipe: Recipe) -> str | None:
    places, completions = recipe.engine.max_concurrent_sequences, recipe.completions_per_step
    if places >= completions:
        return None
    return (
        f"the engine decodes {places} sequences together, fewer than the {completions} completions of a step, so that each batch takes "
        "several turns; raise engine.max_concurrent_sequences"
    )


def _large_learning_rate(recipe: Recipe) -> str | None:
    rate = recipe.training.learning_rate
    if rate <= _LARGE_LEARNING_RATE or recipe.lora is not None:
        return None
    return f"training.learning_rate = {rate:g} is large for training all weights; above {_LARGE_LEARNING_RATE:g} runs usually collapse"


def _uncorrected_staleness(recipe: Recipe) -> str | None:
    algorithm, staleness = recipe.algorithm, recipe.schedule.max_staleness
    if algorithm.proximal != "behaviour":
        return None
    if staleness >= 1 and isinstance(algorithm.surrogate, parts.ReinforceSurrogate):
        return (
            f"max_staleness = {staleness} with surrogate.type = 'reinforce', which takes every token for one of the present policy; set "
            "schedule.type to 'sync', or surrogate.type to 'importance' or 'clip'"
        )
    if staleness < _STALENESS_TO_CORRECT or not isinstance(algorithm.surrogate, parts.ClipSurrogate):
        return None
    return f"max_staleness = {staleness} without a correction costs accuracy; set algorithm.name to 'a3po' or 'areal'"


def _course_cut_short(recipe: Recipe) -> str | None:
    training = recipe.training
    if not recipe.algorithm.dynamic_sampling or training.max_steps is not None or training.lr_scheduler == "constant":
        return None
    return (
        f"training.lr_scheduler = {training.lr_scheduler!r} falls over the steps of training.num_train_epochs, but "
        "algorithm.dynamic_sampling discards groups, so that the prompts end sooner, with the learning rate still high; set "
        "training.max_steps"
    )
