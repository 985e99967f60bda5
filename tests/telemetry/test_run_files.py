import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import RunFolderError
from headrace.telemetry.run_files import LineFile, disk_errors, read_lines, replacing


@contextmanager
def largest_file(num_bytes):
    """Files cannot grow beyond this, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_round_trip(tmp_path):
    lines = LineFile(tmp_path / "new" / "lines.jsonl")
    lines.append({"a": 1, "b": [0.5, None]})
    lines.append({"text": "é\n"})
    # Not closed: what a killed process leaves behind.
    assert read_lines(lines.path) == [{"a": 1, "b": [0.5, None]}, {"text": "é\n"}]
    lines.close()


def test_a_cut_last_line_is_skipped_and_then_overwritten(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2')
    assert read_lines(path) == [{"a": 1}]
    lines = LineFile(path)
    lines.append({"a": 3})
    lines.close()
    assert path.read_bytes() == b'{"a":1}\n{"a":3}\n'


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":\n{"a":3}\n')
    with pytest.raises(RunFolderError, match=r"line 2 of .*lines\.jsonl"):
        read_lines(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"there is no .*nothing\.jsonl"):
        read_lines(tmp_path / "nothing.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_says_what_to_do():
    lines = LineFile(Path("/dev/full"))
    with pytest.raises(RunFolderError, match=r"/dev/full: No space left on device; free space"):
        lines.append({"a": 1})
    lines.close()


def test_a_line_that_does_not_fit_is_cut_and_the_file_stays_readable(tmp_path):
    lines = LineFile(tmp_path / "lines.jsonl")
    lines.append({"a": 1})
    with largest_file(12), pytest.raises(RunFolderError, match="File too large; free space"):
        lines.append({"b": "0123456789"})
    lines.close()
    assert lines.path.stat().st_size == 12
    assert read_lines(lines.path) == [{"a": 1}]


def test_other_errors_ask_for_permission(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="check that the folder exists"):
        LineFile(tmp_path / "file" / "lines.jsonl")


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "sub" / "file"
    with replacing(path) as aside:
        aside.write_text("old")
    with largest_file(4), pytest.raises(RunFolderError), replacing(path) as aside:
        aside.write_text("far too long")
    assert path.read_text() == "old"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_only_disk_errors_are_translated(tmp_path):
    with pytest.raises(ZeroDivisionError), disk_errors(tmp_path):
        raise ZeroDivisionError
