"""From a TOML file and `section.key=value` overrides to a `Recipe`, with errors that a person can act on."""

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from headrace.config.recipe import Recipe
from headrace.errors import RecipeError


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: The TOML file.
        overrides: `section.key=value`, later ones winning; the value is TOML, or a bare word taken as text.

    Raises:
        RecipeError: Anything that keeps the file from being a valid recipe.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {str(path)!r}; give the path of a .toml file") from None
    except IsADirectoryError:
        raise RecipeError(f"{str(path)!r} is a folder; give the path of a .toml file in it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(table, override)
    return parse_recipe(table, origin=str(path))


def parse_recipe(table: Mapping[str, Any], *, origin: str) -> Recipe:
    """Validate a recipe given as nested tables.

    Raises:
        RecipeError: With one clause a problem, each naming its key.
    """
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors(include_url=False)]
        raise RecipeError(f"{origin}: " + "; ".join(problems)) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as TOML: every key in force, defaults included (TOML has no null: unset keys are left out)."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def _apply_override(table: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    names = key.strip().split(".")
    if not separator or len(names) < 2 or not all(names):
        raise RecipeError(f"override {override!r} is not of the form section.key=value, for instance training.max_steps=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    for name in names[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"override {override!r} goes into {name!r}, which is the value {inner!r}, not a table")
        table = inner
    table[names[-1]] = value


def _explain(problem: Any) -> str:
    location = list(problem["loc"])
    key = ".".join(str(part) for part in location if not _is_union_tag(location, part))
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"unknown key {key!r}; {hint}"
    if problem["type"] == "missing":
        return f"{key!r} is missing and has no default"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    given = "" if isinstance(problem["input"], dict | BaseModel) else f" (given: {json.dumps(problem['input'], default=str)})"
    return f"{key}: {message[:1].lower()}{message[1:]}{given}"


def _models_at(location: Sequence[int | str]) -> list[type[BaseModel]]:
    """The models that a pydantic error location leads to; union members are entered by their tag."""
    models: list[type[BaseModel]] = [Recipe]
    for part in location:
        if isinstance(part, int):
            continue
        fields = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        tagged = [model for model in models if _tag(model) == part]
        models = [model for annotation in fields for model in _models_in(annotation)] or tagged or models
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("type")
    return None if field is None else str(field.default)


def _known_keys(location: Sequence[int | str]) -> list[str]:
    return [name for model in _models_at(location) for name in model.model_fields]


def _is_union_tag(location: Sequence[int | str], part: int | str) -> bool:
    position = list(location).index(part)
    return position > 0 and isinstance(part, str) and any(_tag(model) == part for model in _models_at(location[:position]))
