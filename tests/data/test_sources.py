import sys
from pathlib import Path

import pytest

from headrace.config.data import FileSource, HubSource, PythonSource, ReasoningGymSource
from headrace.data.sources import load_rows
from headrace.errors import DataError

ADDITIONS = Path(__file__).parents[2] / "recipes" / "data" / "addition.jsonl"


def test_each_type_of_source_is_read_by_its_own_reader(tmp_path):
    pytest.importorskip("reasoning_gym")
    (tmp_path / "a.jsonl").write_text('{"prompt": "of a file"}')
    (tmp_path / "a.py").write_text("def rows():\n    return [{'prompt': 'of Python'}]\n")
    assert load_rows(FileSource(path="a.jsonl"), base_folder=tmp_path) == [{"prompt": "of a file"}]
    assert load_rows(PythonSource(function="a.py:rows"), base_folder=tmp_path) == [{"prompt": "of Python"}]
    assert len(load_rows(ReasoningGymSource(task="chain_sum", size=3), base_folder=tmp_path)) == 3


@pytest.mark.parametrize(
    ("package", "source", "command"),
    [
        ("datasets", HubSource(name="org/name"), r"pip install 'headrace\[hub\]'"),
        ("reasoning_gym", ReasoningGymSource(task="chain_sum"), r"pip install 'headrace\[gym\]'"),
    ],
)
def test_a_missing_package_is_told_with_the_command_that_installs_it(tmp_path, monkeypatch, package, source, command):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=command):
        load_rows(source, base_folder=tmp_path)


def test_the_shipped_additions_are_right():
    rows = load_rows(FileSource(path=str(ADDITIONS)), base_folder=ADDITIONS.parent)
    sums = {(a, b): str(a + b) for a in range(10) for b in range(10)}
    assert len(rows) == 100
    for ((a, b), answer), row in zip(sums.items(), rows, strict=True):
        question = {"role": "user", "content": f"What is {a} + {b}? Answer with just the result."}
        assert row == {"prompt": [question], "answer": answer}
