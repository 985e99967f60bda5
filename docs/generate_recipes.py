"""Writes docs/recipes.md from the recipe's models: `python docs/generate_recipes.py`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.config import Recipe
from headrace.config.problems import type_of

PAGE = Path(__file__).with_name("recipes.md")
HEADER = """# Keys of a recipe

<!-- Made by docs/generate_recipes.py from src/headrace/config; change the docstrings there, then run `make docs`. -->

A recipe is one TOML file with a table for each section below. `headrace check RECIPE` shows what it amounts to; any key can be set on the
command line as `section.key=value`, for instance `headrace train recipes/quickstart.toml schedule.type=sync training.max_steps=100`.
`[run]`, `[model]` and `[data]` must be given; every other section may be left out. A key without a default must be given; a default of
*unset* is written by leaving the key out. Unknown keys, values of another type and settings that contradict one another are errors.

[recipes/](../recipes) has runnable examples.
"""
_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


def page() -> str:
    """The whole page as Markdown."""
    sections = [line for name, field in Recipe.model_fields.items() for line in _section(name, field)]
    return "\n".join([HEADER, *sections])


def _section(name: str, field: FieldInfo) -> Iterator[str]:
    models = _models_in(field.annotation)
    yield f"## [{name}]\n"
    if len(models) == 1:
        yield from _keys(models[0], name)
        return
    without = "there is none" if field.default is None else f"it is {_toml(type_of(type(field.default)))}"
    yield f"One of {len(models)} types; without this section {without}.\n"
    for model in models:
        yield from _alternative(model, name)


def _alternative(model: type[BaseModel], key: str) -> Iterator[str]:
    name = type_of(model)
    yield f"### {key}\n" if name is None else f'### {key} of type "{name}"\n'
    yield from _keys(model, key)


def _keys(model: type[BaseModel], key: str) -> Iterator[str]:
    """A model's description and a table of its keys, then the alternatives of those keys that are tables themselves."""
    yield f"{_one_line(inspect.getdoc(model) or '')}\n"
    fields = {name: field for name, field in model.model_fields.items() if name != "type"}
    if fields:
        yield "| key | value | default | meaning |\n|---|---|---|---|"
        for name, field in fields.items():
            yield f"| `{key}.{name}` | {_value(field)} | {_default(field)} | {_one_line(field.description or '')} |"
        yield ""
    for name, field in fields.items():
        for inner in _models_in(field.annotation):
            yield from _alternative(inner, f"{key}.{name}")


def _value(field: FieldInfo) -> str:
    limits = [_limit(limit) for limit in field.metadata]
    return _kind(field.annotation) + "".join(f", {limit}" for limit in limits if limit)


def _kind(annotation: Any) -> str:
    if models := _models_in(annotation):
        types = [_toml(name) for model in models if (name := type_of(model)) is not None]
        kind = f"table of type {', '.join(types)}" if types else "table"
        return f"list, each a {kind}" if get_origin(annotation) is list else kind
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(_toml, arguments))
    if origin in (Union, UnionType):
        return " or ".join(_kind(argument) for argument in arguments if argument is not NoneType)
    if origin is list:
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "table"
    if arguments:
        return ", ".join([_kind(arguments[0]), *(_limit(limit) for limit in getattr(arguments[1], "metadata", ()))])
    return _NAMES[annotation]


def _limit(limit: Any) -> str:
    if isinstance(limit, MinLen):
        return "not empty"
    return next((f"{sign} {getattr(limit, kind.__name__.lower()):g}" for kind, sign in _SIGNS.items() if isinstance(limit, kind)), "")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "must be given"
    if field.default is None:
        return "*unset*"
    return f"type {_toml(type_of(type(field.default)))}" if isinstance(field.default, BaseModel) else _toml(field.default)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list):
        return f"`[{', '.join(_toml(item).strip('`') for item in value)}]`"
    return "`{}`" if value == {} else f"`{value!r}`"


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
