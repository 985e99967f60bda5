"""`headrace.train(…)`: the same run from Python, with functions and rows instead of paths to them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.config.loading import parse_recipe
from headrace.config.recipe import Recipe
from headrace.launch.inputs import inputs_from_python
from headrace.launch.run import RunResult, train_on
from headrace.launch.run_folder import RunFolder


def train(
    *,
    model: str | Path,
    train_dataset: Iterable[object],
    reward_funcs: Callable[..., Any] | Sequence[Callable[..., Any]],
    config: Recipe | Mapping[str, Any],
    reward_weights: Sequence[float] | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train a model on rows and reward functions.

    Args:
        model: A Hugging Face model folder, a packaged model's name, or a name on the hub.
        train_dataset: Rows with a `prompt` column (text or messages): dictionaries, a Hugging Face `Dataset`, any finite iterable.
        reward_funcs: Functions with TRL's signature, `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, plain or
            async; closures and lambdas too, since they are sent to their processes by value. It may be empty where only a teacher teaches.
        config: The recipe's sections as nested mappings (docs/recipes.md), without `model`, `data.source` and `rewards.functions`, which
            the arguments above stand for. Only `run.output_dir` has no default.
        reward_weights: A factor for each function; None gives all 1.
        resume: Go on from the run folder's last checkpoint; without one, start.
        console: Where progress is shown.

    Returns:
        The run's folder and summary.

    Raises:
        UserError: Something given cannot work; the message says what to change.
        HeadraceError: The run broke.

    Example:
        >>> result = headrace.train(
        ...     model="SmolLM2-135M-Instruct",
        ...     train_dataset=[{"prompt": f"What is {a} + {b}?", "answer": a + b} for a in range(10) for b in range(10)],
        ...     reward_funcs=lambda completions, answer, **_: [float(str(a) in c) for c, a in zip(completions, answer)],
        ...     config={"run": {"output_dir": "runs/mine"}, "training": {"max_steps": 20, "learning_rate": 1e-5}},
        ... )
        >>> result.model_folder
    """
    functions = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
    recipe = _recipe(model, config)
    folder = RunFolder(Path(recipe.run.output_dir))
    with folder.opened(recipe, resume=resume):
        inputs = inputs_from_python(recipe, train_dataset, functions, reward_weights)
        return train_on(recipe, inputs, folder, console=console or Console())


def _recipe(model: str | Path, config: Recipe | Mapping[str, Any]) -> Recipe:
    table = config.model_dump() if isinstance(config, Recipe) else {name: dict(section) for name, section in config.items()}
    table["model"] = {**table.get("model", {}), "name_or_path": str(model)}
    table["data"] = {**table.get("data", {}), "source": {"type": "passed"}}
    return parse_recipe(table, origin="config")
