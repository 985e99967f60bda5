from array import array

import pytest

from headrace.rewards.functions import GroupArguments

TEXT = GroupArguments(
    prompt="1?", texts=("a", "b"), completion_ids=(array("i", [5]), array("i", [6, 7])), columns={"answer": "1", "level": 2}
)


def test_function_with_keywords_gets_everything():
    def reward(prompts, completions, completion_ids=None, **columns): ...

    assert TEXT.keywords_for(reward) == {
        "prompts": ["1?", "1?"],
        "completions": ["a", "b"],
        "completion_ids": [[5], [6, 7]],
        "answer": ["1", "1"],
        "level": [2, 2],
    }


def test_function_gets_only_what_it_names():
    assert TEXT.keywords_for(lambda completions: ...) == {"completions": ["a", "b"]}
    assert TEXT.keywords_for(lambda completions, level, trainer_state=None: ...) == {"completions": ["a", "b"], "level": [2, 2]}
    assert TEXT.keywords_for(lambda *, prompts: ...) == {"prompts": ["1?", "1?"]}


def test_conversations_give_messages():
    messages = ({"role": "user", "content": "1?"},)
    arguments = GroupArguments(prompt=messages, texts=("a",), completion_ids=(array("i", [5]),), columns={})
    assert arguments.keywords_for(lambda prompts, completions: ...) == {
        "prompts": [[{"role": "user", "content": "1?"}]],
        "completions": [[{"role": "assistant", "content": "a"}]],
    }


def test_missing_column_is_named():
    with pytest.raises(TypeError, match="needs 'solution', but there is only 'answer', 'level'"):
        TEXT.keywords_for(lambda completions, solution: ...)


def test_one_rollout():
    one = TEXT.of_rollout(1)
    assert (one.texts, one.completion_ids, one.columns) == (("b",), (array("i", [6, 7]),), TEXT.columns)
