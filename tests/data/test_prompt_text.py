import numpy as np
import pytest

from headrace.config.data import DataSection, FileSource
from headrace.data.prompt_text import other_columns, prompt_texts
from headrace.errors import DataError

SOURCE = FileSource(path="unused.jsonl")
USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}


def section(**settings) -> DataSection:
    return DataSection(source=SOURCE, **settings)


def test_text_and_conversations_come_out_as_the_data_set_has_them():
    assert prompt_texts([{"prompt": "hi "}], section()) == ["hi "]
    assert prompt_texts([{"prompt": [USER]}], section()) == [(USER,)]
    assert prompt_texts([{"question": "hi"}], section(prompt_column="question")) == ["hi"]


def test_conversations_read_from_tables_lose_their_unused_keys():
    messages = np.array([{**SYSTEM, "name": None}, {**USER, "name": "ann"}], dtype=object)
    assert prompt_texts([{"prompt": messages}], section()) == [(SYSTEM, {**USER, "name": "ann"})]


def test_the_system_prompt_goes_before_conversations_that_have_none():
    own = {"role": "system", "content": "own"}
    rows = [{"prompt": [USER]}, {"prompt": [own, USER]}]
    assert prompt_texts(rows, section(system_prompt="be brief")) == [(SYSTEM, USER), (own, USER)]


def test_a_template_makes_the_prompt_from_the_columns():
    row = {"a": 3, "b": 4, "answer": "7"}
    with_template = section(prompt_template="What is {a} + {b:02d}? Use {{}}.")
    assert prompt_texts([row], with_template) == ["What is 3 + 04? Use {}."]
    assert other_columns(row, with_template) == row


def test_the_other_columns_go_to_the_rewards():
    assert other_columns({"prompt": "hi", "answer": "7", "level": None}, section()) == {"answer": "7", "level": None}


@pytest.mark.parametrize(
    ("rows", "settings", "words"),
    [
        ([], {}, "no rows"),
        ([{"prompt": "a"}] * 3, {"held_out": 3}, "set it to at most 2"),
        ([{"promt": "a", "answer": "b"}], {}, "did you mean 'promt'.*promt, answer"),
        ([{"x": "a", "y": "b"}], {}, "its columns are x, y"),
        ([{"prompt": 3}], {}, "row 0.*a int.*prompt_template"),
        ([{"prompt": "a"}, {"prompt": None}], {}, "row 1.*it is empty"),
        ([{"prompt": "a"}, {"prompt": " \n"}], {}, "row 1: the prompt is empty text"),
        ([{"prompt": []}], {}, "row 0.*no messages"),
        ([{"prompt": ["hi"]}], {}, "'role' and 'content'"),
        ([{"prompt": [{"role": "user"}]}], {}, "'content' must be text"),
        ([{"prompt": [{"role": "user", "content": ["part"]}]}], {}, "'content' must be text"),
        ([{"prompt": [USER, {"role": "assistant", "content": "yes"}]}], {}, "nothing to answer"),
        ([{"a": 1}], {"prompt_template": "{a} + {b}"}, "column 'b'.*columns are a"),
        ([{"a": 1}, {"a": "x"}], {"prompt_template": "{a:02d}"}, "cannot be filled from row 1"),
    ],
)
def test_what_cannot_be_a_prompt_is_refused_in_one_line(rows, settings, words):
    with pytest.raises(DataError, match=words) as caught:
        prompt_texts(rows, section(**settings))
    assert "\n" not in str(caught.value)
