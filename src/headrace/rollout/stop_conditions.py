"""When a completion ends because of its text: stop strings, found as the tokens come."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class StopStringScanner:
    """Watches one completion for stop strings at a cost per token that does not grow with its length.

    Tokens are decoded in a short window: a tokenizer's text of a token depends on the ones just before it (spaces,
    characters made of several tokens), never on the distant past.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = stop_strings
        self._kept_characters = max(map(len, stop_strings)) - 1
        self._context: list[int] = []
        self._undecoded: list[int] = []
        self._tail = ""

    def completes_stop(self, token: int) -> bool:
        """Take the next token; True when the text now contains a stop string."""
        self._undecoded.append(token)
        text = self._decode(self._context + self._undecoded)
        text = self._tail + text[len(self._decode(self._context)) :]
        # U+FFFD at the end: the bytes of a character are still incomplete, so the text may yet change.
        if not text.endswith("\ufffd"):
            self._context, self._undecoded = self._undecoded, []
            self._tail = text[max(0, len(text) - self._kept_characters) :]
        return any(stop in text for stop in self._stop_strings)

    def _decode(self, token_ids: list[int]) -> str:
        return decode(self._tokenizer, token_ids)


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """The text of the tokens, special ones left out and spaces as they are."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def cut_at_stop_string(text: str, stop_strings: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    return text[: min((at for stop in stop_strings if (at := text.find(stop)) >= 0), default=len(text))]
