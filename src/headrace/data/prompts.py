"""From rows to token ids: chat template, length limit, held-out split."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jinja2
import numpy as np
from numpy.typing import NDArray

from headrace.config.data import DataSection
from headrace.data.prompt_text import PromptText, other_columns, prompt_texts
from headrace.data.rows import Row
from headrace.data.shuffled_prompts import ShuffledPrompts, TokenizedPrompt, permutation
from headrace.errors import DataError
from headrace.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HELD_OUT = 0
"""Stream of the seed that draws the held-out rows."""
_ROWS_AT_ONCE = 4096
"""Rows tokenized together: enough for the tokenizer's own threads, without holding all lists of Python integers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSets:
    """The prompts of a run."""

    train: ShuffledPrompts
    held_out: tuple[Prompt, ...]
    """Never trained on; in the data set's order, of epoch 0."""
    num_rows: int
    """Rows of the data set."""
    num_too_long: int
    """Rows left out because their prompt exceeds `max_prompt_length`."""
    longest_prompt: int
    """Tokens of the longest prompt that was kept."""


def build_prompt_sets(
    rows: Sequence[Row],
    section: DataSection,
    *,
    tokenizer: "PreTrainedTokenizerBase",
    seed: int,
    num_epochs: int | None,
    chat_template: str | None = None,
) -> PromptSets:
    """Tokenize the prompts, leave out those that are too long, and set some apart for evaluation.

    Args:
        rows: The data set.
        section: The recipe's `[data]`.
        tokenizer: The model's.
        seed: Fixes the held-out rows and the order of every epoch.
        num_epochs: Passes over the training prompts; None never ends.
        chat_template: Jinja template to use instead of the tokenizer's own.

    Raises:
        DataError: Whatever `prompt_texts` finds, conversations without a chat template, or too few prompts within the limit.
    """
    texts = prompt_texts(rows, section)
    token_ids = list(_tokenize(texts, section, tokenizer, chat_template))
    kept = [row for row, ids in enumerate(token_ids) if len(ids) <= section.max_prompt_length]
    _check_some_left(token_ids, kept, section)
    held_out = _draw_held_out(len(rows), kept, section.held_out, seed)
    prompts = {
        row: TokenizedPrompt(row=row, token_ids=token_ids[row], text=texts[row], columns=other_columns(rows[row], section)) for row in kept
    }
    train = [prompt for row, prompt in prompts.items() if row not in held_out]
    return PromptSets(
        train=ShuffledPrompts(train, seed=seed, shuffle=section.shuffle, num_epochs=num_epochs),
        held_out=tuple(prompts[row].in_epoch(0) for row in sorted(held_out)),
        num_rows=len(rows),
        num_too_long=len(rows) - len(kept),
        longest_prompt=max(len(token_ids[row]) for row in kept),
    )


def _tokenize(
    texts: Sequence[PromptText], section: DataSection, tokenizer: "PreTrainedTokenizerBase", chat_template: str | None
) -> Iterator[NDArray[np.int32]]:
    """Token ids of each prompt.

    A rendered chat template holds its special tokens already; bare text gets those that the tokenizer puts in front, once.
    """
    bare = _texts_stay_bare(texts, section, has_template=(chat_template or tokenizer.chat_template) is not None)
    leading = _leading_special_ids(tokenizer) if bare else []
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        chunk = texts[start : start + _ROWS_AT_ONCE]
        strings = [str(text) for text in chunk] if bare else _render(chunk, section, tokenizer, chat_template)
        for row, ids in enumerate(tokenizer(strings, add_special_tokens=False, verbose=False)["input_ids"], start=start):
            if ids[: len(leading)] != leading:
                ids = [*leading, *ids]
            if not ids:
                raise DataError(f"row {row}: the prompt {texts[row]!r} has no tokens, so nothing can follow it")
            yield np.array(ids, dtype=np.int32)


def _texts_stay_bare(texts: Sequence[PromptText], section: DataSection, *, has_template: bool) -> bool:
    conversations = any(not isinstance(text, str) for text in texts)
    if conversations and not has_template:
        raise DataError("the prompts are conversations, but the model's tokenizer has no chat template; set model.chat_template")
    if conversations or (section.apply_chat_template and has_template):
        return False
    if section.system_prompt is not None:
        raise DataError(
            "data.system_prompt needs a chat template, and none is used on these prompts; set model.chat_template, or write the text "
            "into data.prompt_template"
        )
    return True


def _render(
    texts: Sequence[PromptText], section: DataSection, tokenizer: "PreTrainedTokenizerBase", chat_template: str | None
) -> list[str]:
    system = [] if section.system_prompt is None else [{"role": "system", "content": section.system_prompt}]
    conversations = [
        [*system, {"role": "user", "content": text}] if isinstance(text, str) else [dict(message) for message in text] for text in texts
    ]
    try:
        rendered = tokenizer.apply_chat_template(conversations, chat_template=chat_template, tokenize=False, add_generation_prompt=True)
    except jinja2.TemplateError as error:
        raise DataError(f"the chat template refuses these conversations: {error}; set model.chat_template or change the roles") from error
    return [str(text) for text in rendered]


def _leading_special_ids(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """What the tokenizer puts in front of a text (usually a begin-of-text token, or nothing); what it appends would end the prompt."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    start = next((start for start in range(len(full)) if plain and full[start : start + len(plain)] == plain), 0)
    return full[:start]


def _check_some_left(token_ids: Sequence[NDArray[np.int32]], kept: Sequence[int], section: DataSection) -> None:
    if not kept:
        lengths = sorted(len(ids) for ids in token_ids)
        raise DataError(
            f"all {len(lengths)} prompts are longer than data.max_prompt_length = {section.max_prompt_length} tokens: they have "
            f"{lengths[0]} to {lengths[-1]} (median {lengths[len(lengths) // 2]}); raise the limit"
        )
    if section.held_out >= len(kept):
        raise DataError(
            f"data.held_out = {section.held_out} leaves nothing to train on, because only {len(kept)} of {len(token_ids)} prompts are "
            f"within data.max_prompt_length = {section.max_prompt_length} tokens; lower held_out or raise the limit"
        )


def _draw_held_out(num_rows: int, kept: Sequence[int], num_held_out: int, seed: int) -> frozenset[int]:
    """Drawn from all rows before those that are too long are left out: models with other tokenizers share most of the split."""
    within_limit = set(kept)
    order = permutation(num_rows, np.random.SeedSequence(seed, spawn_key=(_HELD_OUT,)))
    return frozenset([row for row in order if row in within_limit][:num_held_out])
