"""`headrace check`: all that can be found out about a recipe on this machine without loading a model."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.config.algorithm import PythonAdvantage, PythonSurrogate
from headrace.config.data import FileSource, PythonSource, ReasoningGymSource
from headrace.config.lora import check_targets, linear_layers
from headrace.config.model_facts import ModelFacts, read_model_facts
from headrace.config.plan import Plan, make_plan
from headrace.config.recipe import Recipe
from headrace.config.rewards import ExactNumber, MathVerify, PythonReward
from headrace.config.teacher import LocalTeacher, ServerTeacher
from headrace.data.prompt_text import prompt_texts
from headrace.data.rows import Row
from headrace.data.sources import load_rows
from headrace.errors import DataError, RecipeError
from headrace.launch.model_store import MODEL_KEY, check_folder, describe_models, resolve
from headrace.python_functions import import_function
from headrace.rewards.building import build_reward_functions, check_rewards

LARGEST_FILE_TO_READ = 50 * 2**20
"""Bytes; reading a larger data file would make checking slow."""


def check_recipe(recipe: Recipe, *, base_folder: Path) -> tuple[Plan, list[str]]:
    """Look for what the recipe names, and work out its plan.

    Args:
        recipe: A valid recipe.
        base_folder: The recipe's folder, which relative paths are looked up in first.

    Returns:
        The plan, and what is worth knowing about this machine.

    Raises:
        UserError: The first thing that is missing or damaged.
    """
    check_rewards(recipe)
    _check_packages(recipe)
    _check_functions(recipe, base_folder)
    model, notes = _find_model(recipe.model.name_or_path)
    if recipe.lora is not None and model is not None:
        check_targets(recipe.lora, linear_layers(model))
    teacher, teacher_notes = _find_teacher(recipe)
    critic, critic_notes = _find_critic(recipe)
    notes += teacher_notes + critic_notes
    rows = _read_rows(recipe, base_folder)
    if rows is not None:
        prompt_texts(rows, recipe.data)
        _check_answer_columns(recipe, rows)
    run_folder = Path(recipe.run.output_dir)
    if run_folder.is_dir() and any(run_folder.iterdir()):
        notes.append(f"run.output_dir = {recipe.run.output_dir!r} exists: training needs --resume or another folder")
    return make_plan(recipe, model=model, teacher=teacher, critic=critic, num_rows=_count_rows(recipe, rows)), notes


def _count_rows(recipe: Recipe, rows: Sequence[Row] | None) -> int | None:
    if isinstance(recipe.data.source, ReasoningGymSource):
        return recipe.data.source.size
    return None if rows is None else len(rows)


def _check_packages(recipe: Recipe) -> None:
    for key, package, extra in _packages(recipe):
        if importlib.util.find_spec(package) is None:
            raise RecipeError(f"{key} needs the package {package}, which is not installed; run pip install 'headrace[{extra}]'")


def _packages(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """What asks for an optional package, the package, and the extra that installs it."""
    if recipe.data.source.type == "hub":
        yield "data.source.type = 'hub'", "datasets", "hub"
    if recipe.data.source.type == "reasoning_gym":
        yield "data.source.type = 'reasoning_gym'", "reasoning_gym", "gym"
    if any(function.type == "math_verify" for function in recipe.rewards.functions):
        yield "a reward of type 'math_verify'", "math_verify", "math"
    if recipe.lora is not None:
        yield "[lora]", "peft", "lora"
    for sink in recipe.telemetry.report_to:
        if sink != "tensorboard":
            yield f"telemetry.report_to = {sink!r}", sink, sink


def _check_functions(recipe: Recipe, base_folder: Path) -> None:
    """Import the functions of the user's own, which costs what their modules import; a data source is only looked for."""
    build_reward_functions([spec for spec in recipe.rewards.functions if isinstance(spec, PythonReward)], base_folder=base_folder)
    for algorithm in (recipe.algorithm, *recipe.shadow_algorithms.values()):
        for key, part in (("advantage", algorithm.advantage), ("surrogate", algorithm.surrogate)):
            if isinstance(part, PythonAdvantage | PythonSurrogate):
                import_function(part.function, key=f"algorithm.{key}.function", base_folder=base_folder)
    if isinstance(recipe.data.source, PythonSource):
        file = recipe.data.source.function.rpartition(":")[0]
        if file.endswith(".py") and _file_at(file, base_folder) is None:
            raise DataError(f"data.source.function: there is no file {file!r}, neither beside the recipe nor in {str(Path.cwd())!r}")


def _file_at(path: str, base_folder: Path) -> Path | None:
    """Beside the recipe first, then where the command runs."""
    return next((file for folder in (base_folder, Path()) if (file := folder / Path(path).expanduser()).is_file()), None)


def _find_teacher(recipe: Recipe) -> tuple[ModelFacts | None, list[str]]:
    """The sizes of a teacher that is kept beside the policy, and what to know of any other."""
    match recipe.teacher:
        case LocalTeacher(name_or_path=name) if (Path(name).expanduser() / "adapter_config.json").is_file():
            return None, [f"the teacher {name!r} is an adapter, whose base is looked for when training starts"]
        case LocalTeacher(name_or_path=name):
            return _find_model(name, key="teacher.name_or_path")
        case ServerTeacher() as server:
            server.api_key()
            return None, [f"the teacher at {server.url} is asked when training starts, not now"]
        case _:
            return None, []


def _find_critic(recipe: Recipe) -> tuple[ModelFacts | None, list[str]]:
    """The sizes of the model that a critic has for itself."""
    critic = recipe.algorithm.critic
    if critic is None or critic.name_or_path is None:
        return None, []
    return _find_model(critic.name_or_path, key="algorithm.critic.name_or_path")


def _find_model(name: str, *, key: str = MODEL_KEY) -> tuple[ModelFacts | None, list[str]]:
    """A model's sizes when it is on this machine, and what to know when it is not.

    Raises:
        ModelError: There is no such model, or its folder is damaged.
    """
    packaged = {model.name: model for model in describe_models()}.get(name)
    if packaged is None or Path(name).expanduser().is_dir():
        folder = resolve(name, key=key)
    elif packaged.folder is None:
        return None, [
            f"model {name} is fetched when training starts ({packaged.download_megabytes} MB); headrace models {name} does it now"
        ]
    else:
        folder = packaged.folder
        check_folder(folder, key=key)
    if isinstance(folder, str):
        return None, [f"model {name!r} is taken from the Hugging Face hub, which was not asked"]
    return read_model_facts(folder), []


def _read_rows(recipe: Recipe, base_folder: Path) -> list[Row] | None:
    """The rows of a file of moderate size; None for every other source."""
    source = recipe.data.source
    if not isinstance(source, FileSource):
        return None
    found = _file_at(source.path, base_folder)
    if found is not None and found.stat().st_size > LARGEST_FILE_TO_READ:
        return None
    return load_rows(source, base_folder=base_folder)


def _check_answer_columns(recipe: Recipe, rows: Sequence[Row]) -> None:
    for function in recipe.rewards.functions:
        if isinstance(function, ExactNumber | MathVerify) and function.answer_column not in rows[0]:
            raise DataError(
                f"the data has no column {function.answer_column!r}, which the reward {function.type!r} compares with; its columns are "
                f"{', '.join(rows[0])}; set answer_column of rewards.functions"
            )
