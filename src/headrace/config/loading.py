"""From a TOML file and `section.key=value` overrides to a `Recipe`, with errors that a person can act on."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from headrace.config.problems import explain, meaning_of, models_at, type_of
from headrace.config.recipe import Recipe
from headrace.errors import RecipeError


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: The TOML file.
        overrides: `section.key=value`, later ones winning; the value is TOML, or a bare word taken as text. One that changes a table's
            `type` drops the table's keys that the new type does not have.

    Raises:
        RecipeError: Anything that keeps the file from being a valid recipe.
    """
    table = _read_toml(path)
    for override in overrides:
        _apply_override(table, override)
    origin = f"{path} with {' '.join(overrides)}" if overrides else str(path)
    return parse_recipe(table, origin=origin)


def parse_recipe(table: Mapping[str, Any], *, origin: str) -> Recipe:
    """Validate a recipe given as nested tables.

    Raises:
        RecipeError: With one clause a problem, each naming its key.
    """
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeError(f"{origin}: " + "; ".join(explain(error))) from None


def dump_recipe(recipe: Recipe) -> str:
    """The resolved recipe as TOML: every key in force, defaults included (TOML has no null: unset keys are left out)."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {str(path)!r}; give the path of a .toml file") from None
    except IsADirectoryError:
        raise RecipeError(f"{str(path)!r} is a folder; give the path of a .toml file in it") from None
    except OSError as error:
        raise RecipeError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not valid TOML: {error}") from None


def _apply_override(table: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    names = key.strip().split(".")
    if not separator or len(names) < 2 or not all(names):
        meaning = None if names[-1] in Recipe.model_fields else meaning_of(names[-1])
        hint = meaning or "write for instance training.max_steps=10"
        raise RecipeError(f"override {override!r} is not of the form section.key=value; {hint}")
    for name in names[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"override {override!r} goes into {name!r}, which is not a table but {inner!r}")
        table = inner
    value = _parse_value(text)
    if names[-1] == "type":
        _drop_keys_of_other_types(table, names[:-1], value)
    table[names[-1]] = value


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _drop_keys_of_other_types(table: dict[str, Any], location: Sequence[str], new_type: Any) -> None:
    for model in models_at(location):
        if type_of(model) == new_type:
            for key in table.keys() - model.model_fields.keys():
                del table[key]
