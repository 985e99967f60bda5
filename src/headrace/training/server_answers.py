"""How servers say the log-probabilities of a prompt: what to ask for, and how to read the answer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import ModelError, PartDiedError

FormName = Literal["prompt_logprobs", "echo"]
Choice = Mapping[str, Any]
"""The only entry of a completion's `choices`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way of asking."""

    request: Mapping[str, Any]
    """Keys of the request, beside model and prompt."""
    logprobs: Callable[[Choice, Sequence[int]], list[float]]
    """From the answer and the token ids sent to the log-probability of each; that of the first means nothing. Raises PartDiedError."""
    texts: Callable[[Choice, Sequence[int]], list[object]]
    """Likewise to the text of each token, where the server says it."""


def check_texts(given: Sequence[object], expected: Sequence[str]) -> None:
    """Compare the texts of tokens, as far as they are words: servers differ in how they show spaces and parts of characters.

    Raises:
        ModelError: They differ, so that the server has another tokenizer.
    """
    for theirs, ours in zip(given, expected, strict=False):
        if isinstance(theirs, str) and _is_word(ours) and _is_word(theirs) and theirs.strip() != ours.strip():
            raise ModelError(
                f"the teacher reads a token as {theirs!r} that the policy's tokenizer writes as {ours!r}, so its log-probabilities "
                "would be of other tokens; choose a teacher with the policy's tokenizer"
            )


def _prompt_logprobs(choice: Choice, token_ids: Sequence[int]) -> list[float]:
    """vLLM: for each token a table from token id to what is known of it; null for the first one."""
    entries = _counted(choice.get("prompt_logprobs"), token_ids, "prompt_logprobs", at_most=len(token_ids))
    found = [entry.get(str(token_id)) if isinstance(entry, dict) else None for entry, token_id in zip(entries, token_ids, strict=True)]
    return _numbers([entry.get("logprob") if isinstance(entry, dict) else None for entry in found], "prompt_logprobs")


def _echoed_logprobs(choice: Choice, token_ids: Sequence[int]) -> list[float]:
    """OpenAI: one number for each token, null for the first one; a server may add one generated token."""
    logprobs = choice.get("logprobs")
    numbers = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    numbers = _counted(numbers, token_ids, "logprobs.token_logprobs", at_most=len(token_ids) + 1)
    return _numbers(numbers[: len(token_ids)], "logprobs.token_logprobs")


def _counted(entries: object, token_ids: Sequence[int], key: str, *, at_most: int) -> list[Any]:
    found = len(entries) if isinstance(entries, list) else None
    if isinstance(entries, list) and len(token_ids) <= len(entries) <= at_most:
        return entries
    raise PartDiedError(
        f"the teacher returned {'no' if found is None else found} {key} for {len(token_ids)} tokens; it must give one for each token of "
        "the prompt, which it gets as token ids: set teacher.form to the form that the server has ('prompt_logprobs' or 'echo')"
    )


def _numbers(values: Sequence[Any], key: str) -> list[float]:
    """All values; the first one, which nothing precedes, may be missing."""
    wrong = [place for place, value in enumerate(values) if place and not (isinstance(value, int | float) and math.isfinite(value))]
    if wrong:
        raise PartDiedError(
            f"the teacher's {key} have no number for token {wrong[0]} of {len(values)}; it must score the very tokens that it is sent, so "
            "its tokenizer must be the policy's"
        )
    return [0.0 if place == 0 else float(value) for place, value in enumerate(values)]


def _prompt_texts(choice: Choice, token_ids: Sequence[int]) -> list[object]:
    entries = zip(choice["prompt_logprobs"][1:], token_ids[1:], strict=True)
    return [None, *(entry[str(token_id)].get("decoded_token") for entry, token_id in entries)]


def _echoed_texts(choice: Choice, token_ids: Sequence[int]) -> list[object]:
    tokens = choice["logprobs"].get("tokens") or []
    return list(tokens[: len(token_ids)])


def _is_word(text: str) -> bool:
    return text.strip().isascii() and text.strip().isalnum()


FORMS: Mapping[FormName, Form] = {
    "prompt_logprobs": Form(request={"prompt_logprobs": 0, "max_tokens": 1}, logprobs=_prompt_logprobs, texts=_prompt_texts),
    "echo": Form(request={"echo": True, "logprobs": 1, "max_tokens": 0}, logprobs=_echoed_logprobs, texts=_echoed_texts),
}
"""`prompt_logprobs` is vLLM's, `echo` that of OpenAI's completions."""
