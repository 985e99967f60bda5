import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.data.file_source import load_file
from headrace.errors import DataError

CONVERSATION = [{"role": "user", "content": "What is 3 + 4?"}]


def load(path: Path, base_folder: Path | None = None):
    return load_file(str(path), base_folder=base_folder or path.parent)


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
