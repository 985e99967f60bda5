"""`headrace algorithms`: the named algorithms, and the parts that one is made of."""

import difflib
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config.algorithm import AlgorithmSection
from headrace.config.algorithm_formulas import batch_rules, division, loss_formula
from headrace.config.named_algorithms import NAMED_ALGORITHMS, AlgorithmName
from headrace.errors import RecipeError

WIDTH = 100
_NO_BREAK = "\N{NO-BREAK SPACE}"


def list_algorithms() -> Iterator[str]:
    """Every name with its idea, its source and its loss, line by line."""
    widest = max(map(len, NAMED_ALGORITHMS))
    indent = " " * (widest + 2)
    for name, algorithm in NAMED_ALGORITHMS.items():
        yield from _wrapped(f"{name:<{widest}}  {algorithm.idea}", indent)
        yield f"{indent}{algorithm.source}"
        yield from _loss_of(AlgorithmSection(name=name), indent)


def describe_algorithm(name: str) -> Iterator[str]:
    """One algorithm as a table of a recipe: the keys that it sets, and as comments those that it leaves as they are.

    Raises:
        RecipeError: There is no such name.
    """
    known = _known_name(name)
    algorithm = AlgorithmSection(name=known)
    yield from _wrapped(f"# {NAMED_ALGORITHMS[known].idea}", "# ")
    yield f"# {NAMED_ALGORITHMS[known].source}"
    yield from _loss_of(algorithm, "# ")
    yield "[algorithm]"
    settings, defaults = algorithm.model_dump(), AlgorithmSection().model_dump()
    chosen = {key: value for key, value in settings.items() if key == "name" or value != defaults[key]}
    for key, value in chosen.items():
        yield f"{key} = {_toml(value)}"
    if algorithm.distillation_coefficient > 0:
        yield "# needs the section [teacher]"
    yield "# as without the name:"
    for key, value in settings.items():
        if key not in chosen:
            yield f"# {key} is unset" if value is None else f"# {key} = {_toml(value)}"


def _known_name(name: str) -> AlgorithmName:
    for known in NAMED_ALGORITHMS:
        if known == name:
            return known
    near = difflib.get_close_matches(name, NAMED_ALGORITHMS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMED_ALGORITHMS)}"
    raise RecipeError(f"there is no algorithm {name!r}; {hint}")


def _loss_of(algorithm: AlgorithmSection, indent: str) -> Iterator[str]:
    """The loss on a line of its own, then what its symbols stand for, broken behind commas alone, and the batch's rules."""
    loss, _, symbols = loss_formula(algorithm).removeprefix(f"{algorithm.name}: ").partition("; ")
    yield indent + loss
    whole = re.sub(r"(?<!,) |(?<=\[\d,) ", _NO_BREAK, symbols)
    yield from (line.replace(_NO_BREAK, " ") for line in _wrapped(f"{indent}{whole}", indent))
    yield from _wrapped(indent + ", ".join([division(algorithm), *batch_rules(algorithm)]), indent)


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _toml(value: Any) -> str:
    """A value as TOML has it, a table in one line; keys without a value are left out."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(inner)}' for key, inner in value.items() if inner is not None)} }}"
    return json.dumps(value, ensure_ascii=False)
