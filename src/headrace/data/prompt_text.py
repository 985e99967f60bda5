"""From rows to the text or the conversation of each prompt; no tokenizer is needed, so a bad recipe fails before a model loads."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from headrace.config.data import DataSection
from headrace.data.rows import Row
from headrace.errors import DataError
from headrace.types import Message

PromptText = str | tuple[Message, ...]
"""Plain text, or the messages of a conversation."""


def prompt_texts(rows: Sequence[Row], section: DataSection) -> list[PromptText]:
    """Read every row's prompt, and check what can be checked without a tokenizer.

    Args:
        rows: The data set.
        section: The recipe's `[data]`.

    Returns:
        One for each row. Conversations that have no system message of their own begin with `section.system_prompt`.

    Raises:
        DataError: No rows, no such column, a prompt that is neither text nor a conversation, or all rows held out.
    """
    if not rows:
        raise DataError("the data set has no rows, so there is nothing to train on")
    if section.held_out >= len(rows):
        raise DataError(
            f"data.held_out = {section.held_out} leaves nothing to train on, because the data set has {len(rows)} rows; "
            f"set it to at most {len(rows) - 1}"
        )
    if section.prompt_template is not None:
        return [_fill_template(section.prompt_template, row, number) for number, row in enumerate(rows)]
    if section.prompt_column not in rows[0]:
        raise DataError(_no_prompt_column(section.prompt_column, list(rows[0])))
    return [_read_prompt(row.get(section.prompt_column), number, section) for number, row in enumerate(rows)]


def other_columns(row: Row, section: DataSection) -> Row:
    """The columns that go to the rewards: all but the one that was the prompt."""
    used = section.prompt_column if section.prompt_template is None else None
    return {column: value for column, value in row.items() if column != used}


def _no_prompt_column(name: str, columns: list[str]) -> str:
    near = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"the data set has no column {name!r}; {hint}its columns are {', '.join(columns)}; set data.prompt_column or data.prompt_template"
    )


def _fill_template(template: str, row: Row, number: int) -> str:
    try:
        text = template.format_map(row)
    except KeyError as error:
        raise DataError(
            f"data.prompt_template = {template!r} names the column {error}, but the data set's columns are {', '.join(row)}"
        ) from error
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise DataError(f"data.prompt_template = {template!r} cannot be filled from row {number}: {error}") from error
    return _not_empty(text, number)


def _read_prompt(value: object, number: int, section: DataSection) -> PromptText:
    if isinstance(value, str):
        return _not_empty(value, number)
    if not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        raise DataError(
            f"row {number}: the prompt in column {section.prompt_column!r} must be text or a list of messages, but it is "
            f"{'empty' if value is None else f'a {type(value).__name__}'}; use data.prompt_template to make text from other columns"
        )
    messages = tuple(_read_message(message, number) for message in value)
    if not messages:
        raise DataError(f"row {number}: the conversation in column {section.prompt_column!r} has no messages")
    if messages[-1]["role"] == "assistant":
        raise DataError(f"row {number}: the conversation ends with the assistant's message, so there is nothing to answer; remove it")
    if section.system_prompt is not None and messages[0]["role"] != "system":
        return ({"role": "system", "content": section.system_prompt}, *messages)
    return messages


def _read_message(message: object, number: int) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f"row {number}: the prompt is a list, but not of messages with 'role' and 'content': {message!r}")
    # A table of messages gives every message the keys of all, the unused ones empty.
    fields = {str(key): value for key, value in message.items() if value is not None}
    if "content" not in fields or not all(isinstance(value, str) for value in fields.values()):
        raise DataError(f"row {number}: a message's 'content' must be text, and so must its other keys: {message!r}")
    return fields


def _not_empty(text: str, number: int) -> str:
    if not text.strip():
        raise DataError(f"row {number}: the prompt is empty text; remove the row or fill it")
    return text
