import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout.tiny_models import byte_tokenizer

from headrace.rollout.stop_conditions import StopStringScanner, cut_at_stop_string

TOKENIZER = byte_tokenizer()


def first_stop(text: str, stop_strings: tuple[str, ...]) -> int | None:
    """Tokens (bytes) until the scanner stops."""
    scanner = StopStringScanner(TOKENIZER, stop_strings)
    for count, token in enumerate(TOKENIZER(text)["input_ids"], start=1):
        if scanner.completes_stop(token):
            return count
    return None


@pytest.mark.parametrize(
    ("text", "stop_strings", "tokens"),
    [("one\n\ntwo", ("\n\n",), 5), ("aab", ("ab",), 3), ("abc", ("c", "b"), 2), ("abc", ("x",), None),
     ("caf\u00e9!", ("\u00e9",), 5), ("\u00e9\u00e9stop", ("\u00e9s",), 5), ("a", ("a",), 1)],
)  # fmt: skip
def test_the_token_that_completes_a_stop_string_is_found(text: str, stop_strings: tuple[str, ...], tokens: int | None):
    assert first_stop(text, stop_strings) == tokens


def test_special_tokens_have_no_text():
    scanner = StopStringScanner(TOKENIZER, ("ab",))
    a, b = TOKENIZER("ab")["input_ids"]
    assert [scanner.completes_stop(token) for token in (a, 256, b)] == [False, False, True]


@given(st.text("ab\u00e9\u20ac ", max_size=30), st.text("ab\u00e9\u20ac ", min_size=1, max_size=4))
def test_scanning_agrees_with_searching_the_whole_text(text: str, stop: str):
    at = text.find(stop)
    assert first_stop(text, (stop,)) == (None if at < 0 else len(text[: at + len(stop)].encode()))


def test_text_ends_before_the_first_stop_string():
    assert cut_at_stop_string("one. two; three", (";", ".")) == "one"
    assert cut_at_stop_string("one", (";",)) == "one"
    assert cut_at_stop_string("one", ()) == "one"
