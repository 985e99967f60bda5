from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rewards.exact_number import ExactNumberReward, last_number


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("The answer is 1,000.", "1000", 1.0),
        ("so 1000", "1,000", 1.0),
        ("1,234,567", "1234567", 1.0),
        ("-3", "-3", 1.0),
        ("3", "-3", 0.0),
        ("\N{MINUS SIGN}3", "-3", 1.0),
        ("3.0", "3", 1.0),
        ("3", "3.0", 1.0),
        (".5", "0.5", 1.0),
        ("12 km.", "12", 1.0),
        ("It costs $1,200.50!", "1200.5", 1.0),
        ("a loss of -$3", "-3", 1.0),
        ("First 4, then 5", "5", 1.0),
        ("First 5, then 4", "5", 0.0),
        ("10-3", "3", 1.0),
        ("x=-2", "-2", 1.0),
        ("f(1)-2", "2", 1.0),
        ("2e3", "2000", 1.0),
        ("72", "48 + 24 = 72\n#### 72", 1.0),
        ("7", 7, 1.0),
        ("7", 7.0, 1.0),
        ("", "0", 0.0),
        ("no number", "0", 0.0),
        ("1e999999999999", "1", 0.0),
        ("0.333", "0.3333", 0.0),
        ("\u0663", "3", 0.0),  # an Arabic three
    ],
)
def test_last_number_of_completion_is_compared_with_answer(completion, answer, reward):
    assert ExactNumberReward()([completion], answer=[answer]) == [reward]


def test_answer_column_and_conversations():
    reward = ExactNumberReward(answer_column="solution")
    completions = [[{"role": "assistant", "content": "it is 4"}], [{"role": "assistant", "content": "it is 5"}]]
    assert reward(completions, solution=["4", "4"]) == [1.0, 0.0]


def test_missing_column_and_answer_without_number_are_named():
    with pytest.raises(ValueError, match=r"no column 'answer' \(columns: 'solution'\)"):
        ExactNumberReward()(["4"], solution=["4"])
    with pytest.raises(ValueError, match="no number in the answer 'four'"):
        ExactNumberReward()(["4"], answer=["four"])


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=4), st.text("abc .:!\n"))
def test_any_number_in_any_grouping_is_read(number: Decimal, before: str):
    assert last_number(f"{before} {number:,f} apples.") == number


@given(st.text())
def test_any_text_is_scored(text: str):
    assert ExactNumberReward()([text], answer=["1"])[0] in (0.0, 1.0)
