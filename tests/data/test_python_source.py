import sys

import pytest

from headrace.data.python_source import load_python
from headrace.errors import UserError


def test_a_python_function_of_a_file_beside_the_recipe(tmp_path):
    (tmp_path / "tasks.py").write_text("def rows():\n    for n in range(3):\n        yield {'prompt': f'number {n}'}\n")
    assert load_python("tasks.py:rows", base_folder=tmp_path)[2] == {"prompt": "number 2"}


def test_a_python_function_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_module.py").write_text("def rows():\n    return [{'prompt': 'a'}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_python("my_tasks_module:rows", base_folder=tmp_path) == [{"prompt": "a"}]
    sys.modules.pop("my_tasks_module")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("no_such_module:rows", "no_such_module"),
        ("none.py:rows", "no file 'none.py'"),
        ("broken.py:rows", "cannot be imported"),
        ("tasks.py:other", "has no function 'other'"),
        ("tasks.py:not_rows", "expected an iterable of rows"),
    ],
)
def test_a_python_function_that_cannot_give_rows(tmp_path, function, words):
    (tmp_path / "broken.py").write_text("def rows(:\n")
    (tmp_path / "tasks.py").write_text("def not_rows():\n    return 3\n")
    with pytest.raises(UserError, match=words):
        load_python(function, base_folder=tmp_path)
