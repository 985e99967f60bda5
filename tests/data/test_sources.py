import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.config.data import FileSource, HubSource, PythonSource, ReasoningGymSource
from headrace.data.rows import rows_from_iterable
from headrace.data.sources import load_rows
from headrace.errors import DataError

CONVERSATION = [{"role": "user", "content": "What is 3 + 4?"}]
ADDITIONS = Path(__file__).parents[2] / "recipes" / "data" / "addition.jsonl"


def load(path: Path, base_folder: Path | None = None):
    return load_rows(FileSource(path=str(path)), base_folder=base_folder or path.parent)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_jsonl_rows_keep_their_types_and_blank_lines_do_not_count(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "hé", "answer": "7", "n": 7}\n\n{"prompt": "you", "answer": "8", "n": 8.5}\n', "utf-8")
    assert load(tmp_path / "a.jsonl") == [{"prompt": "hé", "answer": "7", "n": 7}, {"prompt": "you", "answer": "8", "n": 8.5}]


def test_a_column_that_a_row_lacks_is_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "level": 3}\n')
    assert load(tmp_path / "a.jsonl") == [{"prompt": "a", "level": None}, {"prompt": "b", "level": 3}]


def test_parquet_gives_conversations_as_lists_of_dictionaries(tmp_path):
    pa.parquet.write_table(pa.Table.from_pylist([{"prompt": CONVERSATION, "answer": "7"}]), tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet") == [{"prompt": CONVERSATION, "answer": "7"}]


def test_csv_gives_numbers_texts_and_conversations_written_as_json(tmp_path):
    quoted = json.dumps(CONVERSATION).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'prompt,answer,note\n"{quoted}",7,"two\nlines"\n"{quoted}",8,[{{x\n')
    rows = load(tmp_path / "a.csv")
    assert rows[0] == {"prompt": CONVERSATION, "answer": 7, "note": "two\nlines"}
    assert rows[1]["note"] == "[{x"


def test_a_relative_path_is_looked_up_beside_the_recipe_before_the_current_folder(tmp_path, monkeypatch):
    for folder in ("recipe", "current"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(json.dumps({"prompt": folder}))
    (tmp_path / "current" / "b.jsonl").write_text('{"prompt": "only here"}')
    monkeypatch.chdir(tmp_path / "current")
    assert load(Path("a.jsonl"), tmp_path / "recipe") == [{"prompt": "recipe"}]
    assert load(Path("b.jsonl"), tmp_path / "recipe") == [{"prompt": "only here"}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.jsonl", None, "is missing"),
        ("a.txt", "hi", ".jsonl, .parquet, .csv"),
        ("empty.jsonl", "", "no rows"),
        ("empty.csv", "", "it is empty"),
        ("header.csv", "prompt,answer\n", "no rows"),
        ("bad.jsonl", '{"prompt": "a"}\n\n{"prompt": \n', "line 3: not valid JSON"),
        ("latin.jsonl", b'{"prompt": "\xe9"}', "line 1: not valid JSON"),
        ("lists.jsonl", '{"prompt": "a"}\n["b"]\n', "line 2: a list"),
        ("unlike.jsonl", '{"prompt": "a"}\n{"prompt": ["b"]}\n', "'prompt' has text in row 0 but a list in row 1"),
        ("unlike.jsonl", '{"p": "a", "answer": 1}\n{"p": "b"}\n{"p": "c", "answer": "2"}\n', "a number in row 0 but text in row 2"),
        ("cut.parquet", b"PAR1", "not a readable Parquet file"),
        ("ragged.csv", "a,b\n1,2\n3\n", "not a readable CSV file"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refusal(tmp_path / name)
    assert words in message
    assert name in message


def test_a_folder_is_refused_as_such(tmp_path):
    assert "is a folder, not a file" in refusal(tmp_path)


def test_rows_from_python_may_be_any_iterable_of_mappings():
    assert rows_from_iterable(({"prompt": str(number)} for number in range(2)), origin="rows") == [{"prompt": "0"}, {"prompt": "1"}]
    array = np.array(CONVERSATION, dtype=object)
    assert rows_from_iterable([{"prompt": array}], origin="rows")[0]["prompt"] is array


def test_rows_from_a_hugging_face_dataset():
    datasets = pytest.importorskip("datasets")
    rows = rows_from_iterable(datasets.Dataset.from_list([{"prompt": CONVERSATION, "answer": "7"}]), origin="rows")
    assert rows == [{"prompt": CONVERSATION, "answer": "7"}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "no rows"), (["text"], "row 0 is text"), ({"prompt": "a"}, "got dict"), ("text", "got str"), (3, "got int")],
)
def test_rows_from_python_of_the_wrong_kind_are_refused(rows, words):
    with pytest.raises(DataError, match=words):
        rows_from_iterable(rows, origin="rows")


def test_a_python_function_of_a_file_beside_the_recipe(tmp_path):
    (tmp_path / "tasks.py").write_text("def rows():\n    for n in range(3):\n        yield {'prompt': f'number {n}'}\n")
    assert load_rows(PythonSource(function="tasks.py:rows"), base_folder=tmp_path)[2] == {"prompt": "number 2"}


def test_a_python_function_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_module.py").write_text("def rows():\n    return [{'prompt': 'a'}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_rows(PythonSource(function="my_tasks_module:rows"), base_folder=tmp_path) == [{"prompt": "a"}]
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
    with pytest.raises(DataError, match=words):
        load_rows(PythonSource(function=function), base_folder=tmp_path)


def test_reasoning_gym_rows_carry_the_entry_that_the_scorer_needs(tmp_path):
    reasoning_gym = pytest.importorskip("reasoning_gym")
    source = ReasoningGymSource(task="chain_sum", size=5, seed=3, parameters={"min_terms": 2, "max_terms": 2})
    rows = load_rows(source, base_folder=tmp_path)
    task = reasoning_gym.create_dataset("chain_sum", size=5, seed=3, min_terms=2, max_terms=2)
    assert [row["prompt"] for row in rows] == [entry["question"] for entry in task]
    for row in rows:
        assert task.score_answer(answer=row["answer"], entry=row["reasoning_gym_entry"]) == 1.0


@pytest.mark.parametrize(
    ("task", "parameters", "words"),
    [
        ("chain_summ", {}, "chain_sum"),
        ("chain_sum", {"min_term": 2}, "min_terms"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "many"}, "refuses the parameters"),
    ],
)
def test_reasoning_gym_refusals_name_what_there_is(tmp_path, task, parameters, words):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=words):
        load_rows(ReasoningGymSource(task=task, parameters=parameters), base_folder=tmp_path)


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


def test_a_hub_that_cannot_be_reached(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="'org/no-such-data'") as caught:
        load_rows(HubSource(name="org/no-such-data"), base_folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_the_shipped_additions_are_right():
    rows = load(ADDITIONS)
    sums = {(a, b): str(a + b) for a in range(10) for b in range(10)}
    assert len(rows) == 100
    for ((a, b), answer), row in zip(sums.items(), rows, strict=True):
        question = {"role": "user", "content": f"What is {a} + {b}? Answer with just the result."}
        assert row == {"prompt": [question], "answer": answer}
