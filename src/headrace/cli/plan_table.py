"""Shows a plan: as a table on a terminal, as plain lines elsewhere."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from headrace.config.algorithm_formulas import batch_rules
from headrace.config.memory import MemoryEstimate
from headrace.config.plan import Plan
from headrace.config.recipe import Recipe

Lines = list[tuple[str, str]]
"""What, and how much or which."""


def show_plan(plan: Plan, recipe: Recipe, notes: Sequence[str], console: Console | None = None) -> None:
    """Print a plan with its warnings, then the notes."""
    console = console or Console(highlight=False)
    lines = [*_batch(plan, recipe), *_schedule(plan, recipe), *_learning(plan, recipe), *_extent(plan, recipe), *_memory(plan.memory)]
    lines += [("warning", warning) for warning in plan.warnings]
    lines += [("note", note) for note in notes]
    if console.is_terminal:
        table = Table(show_header=False)
        for name, value in lines:
            table.add_row(name, value, style="yellow" if name == "warning" else None)
        console.print(table, markup=False)
    else:
        for name, value in lines:
            console.print(f"{name:<18} {value}", soft_wrap=True, markup=False)


def _batch(plan: Plan, recipe: Recipe) -> Lines:
    prompts, siblings = recipe.training.prompts_per_step, recipe.algorithm.num_generations
    step = f"{prompts} prompts · {siblings} generations = {plan.completions_per_step} completions"
    return [("step", step), ("updates a step", f"{plan.updates_per_step}, each on {plan.completions_per_update} completions")]


def _schedule(plan: Plan, recipe: Recipe) -> Lines:
    worst = "not bounded" if plan.worst_staleness is None else str(plan.worst_staleness)
    return [
        ("schedule", f"{recipe.schedule.type}, {plan.slots} slots (groups alive at once)"),
        ("worst staleness", f"{worst}: {plan.staleness_reason}"),
    ]


def _learning(plan: Plan, recipe: Recipe) -> Lines:
    parts = {"rules": batch_rules(recipe.algorithm), "compared with": list(recipe.shadow_algorithms)}
    return [
        ("loss", plan.loss),
        ("divided by", plan.denominator),
        *((name, ", ".join(found)) for name, found in parts.items() if found),
        ("sampling", plan.sampling),
        ("evaluation", plan.evaluation),
    ]


def _extent(plan: Plan, recipe: Recipe) -> Lines:
    prompts = "not counted" if plan.num_prompts is None else f"at most {plan.num_prompts}"
    steps = "until the prompts end" if plan.steps is None else str(plan.steps)
    epochs = "" if plan.epochs is None else f" ({plan.epochs:.3g} epochs)"
    full = recipe.training.prompts_per_step
    last = "" if plan.prompts_of_last_step in (None, full) else f", the last one with {plan.prompts_of_last_step} of {full} prompts"
    return [("training prompts", prompts), ("steps", steps + last + epochs)]


def _memory(memory: MemoryEstimate | None) -> Lines:
    if memory is None:
        return [("memory", "not estimated, because the model's sizes are not known here")]
    parts = [(f"  {part.name}", f"{_gib(part.num_bytes)} = {part.formula}") for part in memory.parts]
    return [("memory", f"{_gib(memory.total_bytes)} at most, without the libraries"), *parts]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
