"""What a reward function is, and the arguments it is called with: TRL's convention."""

import inspect
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Completion = str | Sequence[Mapping[str, str]]
"""The text of a completion, or, when the prompt is a conversation, the assistant's message in a list."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """A reward: a callable with a name and a weight in the sum.

    The callable has TRL's signature, `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, plain or
    async, and gets every argument by keyword, as far as it accepts it. Each argument is a list with one entry for
    each completion; so is the result, in which None means that the function does not apply.
    """

    name: str
    weight: float
    call: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupArguments:
    """The completions of one prompt. It holds the prompt and its columns once, and needs no numpy to be unpickled."""

    prompt: str | tuple[Mapping[str, str], ...]
    texts: tuple[str, ...]
    completion_ids: tuple["array[int]", ...]
    columns: Mapping[str, object]

    def of_rollout(self, index: int) -> "GroupArguments":
        """The same for one completion alone."""
        return replace(self, texts=(self.texts[index],), completion_ids=(self.completion_ids[index],))

    def keywords_for(self, call: Callable[..., Any]) -> dict[str, object]:
        """The keyword arguments that `call` accepts.

        Raises:
            TypeError: It requires something that there is not.
        """
        parameters = inspect.signature(call).parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        accepted = {parameter.name for parameter in parameters}
        available = (*self.columns, "prompts", "completions", "completion_ids")
        missing = [p.name for p in parameters if p.default is p.empty and p.kind in _NAMED and p.name not in available]
        if missing:
            raise TypeError(f"it needs {', '.join(map(repr, missing))}, but there is only {', '.join(map(repr, available))}")
        return {name: self._argument(name) for name in available if takes_all or name in accepted}

    def _argument(self, name: str) -> list[Any]:
        if name == "completion_ids":
            return [ids.tolist() for ids in self.completion_ids]
        if name == "completions":
            return [self._completion(text) for text in self.texts]
        if name == "prompts":
            return [self._prompt() for _ in self.texts]
        return [self.columns[name]] * len(self.texts)

    def _completion(self, text: str) -> Completion:
        return text if isinstance(self.prompt, str) else [{"role": "assistant", "content": text}]

    def _prompt(self) -> Completion:
        return self.prompt if isinstance(self.prompt, str) else [dict(message) for message in self.prompt]


def completion_text(completion: Completion) -> str:
    """The text of a completion in either form."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def required_column(columns: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    """The values of a column.

    Raises:
        ValueError: The data set has no such column.
    """
    if name not in columns:
        known = ", ".join(repr(column) for column in columns if column not in ("prompts", "completion_ids")) or "none"
        raise ValueError(f"the data have no column {name!r} (columns: {known}); set answer_column to the one with the right answers")
    return columns[name]
