"""Turns what pydantic found wrong with a recipe into sentences that say what to write instead."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from headrace.config.recipe import Recipe
from headrace.config.synonyms import SYNONYMS

Location = tuple[int | str, ...]
"""Field names, list positions and union tags, from the outside in, as pydantic reports them."""

_EXPECTATIONS = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_type": "a whole number",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "a table",
    "string_too_short": "text that is not empty",
    "string_type": "text",
}


def explain(error: ValidationError) -> list[str]:
    """One sentence a problem, each naming its key; the alternatives of one value are joined to one sentence."""
    sentences: dict[str, list[str]] = {}
    expectations: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False):
        key = _key(problem["loc"])
        expectation = _EXPECTATIONS.get(problem["type"])
        if expectation is None:
            sentences.setdefault(key, []).append(_sentence(problem, key))
            continue
        expectations.setdefault(key, []).append(expectation.format(**problem.get("ctx", {})))
        sentences[key] = [f"{key or 'a recipe'} must be {' or '.join(expectations[key])} (given: {_shown(problem['input'])})"]
    return [sentence for of_key in sentences.values() for sentence in of_key]


def models_at(location: Sequence[int | str]) -> list[type[BaseModel]]:
    """The models that a location in a recipe leads to; a union is all its members, until a tag chooses one."""
    models: list[type[BaseModel]] = [Recipe]
    for part in location:
        fields = [model.model_fields[part] for model in models if isinstance(part, str) and part in model.model_fields]
        if fields:
            models = [model for field in fields for model in _models_in(field.annotation)]
        else:
            models = [model for model in models if type_of(model) == part] or models
    return models


def meaning_of(name: str) -> str | None:
    """What someone who writes `name` in the wrong place, or knows it from another library, should write here."""
    if keys := keys_named(name):
        return f"did you mean {' or '.join(map(repr, keys))}?"
    return f"here it is {SYNONYMS[name]}" if name in SYNONYMS else None


def keys_named(name: str) -> list[str]:
    """Every key of a recipe whose last part is `name`, written out from its section."""
    return list(dict.fromkeys(key for key in _all_keys() if key.rpartition(".")[2] == name))


def type_of(model: type[BaseModel]) -> str | None:
    """The value of `type` that chooses this model in its union; None for a model that is no alternative."""
    field = model.model_fields.get("type")
    return None if field is None else str(field.default)


def _sentence(problem: Any, key: str) -> str:
    location, given = problem["loc"], problem["input"]
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}; {_hint(location)}"
        case "missing":
            return f"section [{key}] is missing" if len(location) == 1 else f"{key} is missing and has no default"
        case "union_tag_not_found":
            return _missing_type(location, key, given)
        case "union_tag_invalid":
            return f"{key}.type must be one of {_types(location)} (given: {_shown(given['type'])})"
        case "model_attributes_type":
            return f"{key} must be a table with a type, one of {_types(location)} (given: {_shown(given)})"
        case _:
            message = str(problem["msg"]).removeprefix("Value error, ")
            return f"{key}: {message}" if key else message


def _missing_type(location: Location, key: str, given: Mapping[str, Any]) -> str:
    fitting = [model for model in models_at(location) if given and set(given) <= set(model.model_fields)]
    hint = f"; {' and '.join(given)} fits {' or '.join(repr(type_of(model)) for model in fitting)}" if fitting else ""
    return f"{key} is given without {key}.type, which must be one of {_types(location)}{hint}"


def _types(location: Location) -> str:
    return ", ".join(repr(type_of(model)) for model in models_at(location))


def _hint(location: Location) -> str:
    name, models = str(location[-1]), models_at(location[:-1])
    if _key([part for part in location if isinstance(part, str)]) in keys_named(name):
        return _wrong_type(location)
    if meaning := meaning_of(name):
        return meaning
    siblings = sorted({field for model in models for field in model.model_fields})
    if near := difflib.get_close_matches(name, siblings, n=1, cutoff=0.5):
        return f"did you mean {_key((*location[:-1], near[0]))!r}?"
    if near := difflib.get_close_matches(name, [key.rpartition(".")[2] for key in _all_keys()], n=1, cutoff=0.8):
        return f"did you mean {keys_named(near[0])[0]!r}?"
    return f"known keys: {', '.join(siblings)}"


def _wrong_type(location: Location) -> str:
    """For a key that other members of the union have: the location ends with the tag in force and the key."""
    *outer, chosen, name = location
    owners = [repr(type_of(model)) for model in models_at(outer) if name in model.model_fields]
    return f"type {chosen!r} does not have it, {' and '.join(owners)} {'does' if len(owners) == 1 else 'do'}"


def _all_keys(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in _models_in(field.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _key(location: Sequence[int | str]) -> str:
    """The location as a user writes it: without union tags and the names of a value's alternatives, and no deeper than one step into it."""
    parts: list[str] = []
    for position, part in enumerate(location):
        models = models_at(location[:position])
        fields = [model.model_fields[part] for model in models if isinstance(part, str) and part in model.model_fields]
        is_tag = any(type_of(model) == part for model in models)
        if fields or isinstance(part, int) or (not is_tag and not _is_alternative(part)):
            parts.append(str(part))
        if not fields and not is_tag and isinstance(part, str):
            break
    return ".".join(parts)


def _is_alternative(part: str) -> bool:
    return part.startswith(("literal[", "dict[")) or part in ("int", "constrained-int", "list[str]")


def _shown(value: Any) -> str:
    # JSON leaves line ends as they are that are not in ASCII.
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in json.dumps(value, default=str, ensure_ascii=False)
    )
    return text if len(text) <= 60 else text[:57] + "..."
