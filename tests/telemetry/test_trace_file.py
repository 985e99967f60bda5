import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RunFolderError
from headrace.telemetry.trace_file import TraceFile, read_trace


def events_of(path: Path, phase: str) -> list[dict]:
    return [event for event in read_trace(path) if event["ph"] == phase]


def test_a_closed_trace_is_one_json_array(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace.json", process="headrace")
    file.slice(5, "trainer", "micro-batch", start=1.5, end=2.0, args={"version": 3})
    file.begin(7, "rollouts 1", "group 0", time=0.25, args={})
    file.end(7, time=0.75, args={"num_tokens": 9})
    file.count("groups", time=1.0, values={"live": 2})
    file.close()
    file.close()
    assert json.loads((tmp_path / "trace.json").read_text()) == [
        {"pid": 1, "ph": "M", "name": "process_name", "args": {"name": "headrace"}},
        {"pid": 1, "ph": "M", "name": "thread_name", "tid": 5, "args": {"name": "trainer"}},
        {"pid": 1, "ph": "M", "name": "thread_sort_index", "tid": 5, "args": {"sort_index": 5}},
        {"pid": 1, "ph": "X", "name": "micro-batch", "ts": 1_500_000, "dur": 500_000, "tid": 5, "args": {"version": 3}},
        {"pid": 1, "ph": "M", "name": "thread_name", "tid": 7, "args": {"name": "rollouts 1"}},
        {"pid": 1, "ph": "M", "name": "thread_sort_index", "tid": 7, "args": {"sort_index": 7}},
        {"pid": 1, "ph": "B", "name": "group 0", "ts": 250_000, "tid": 7, "args": {}},
        {"pid": 1, "ph": "E", "ts": 750_000, "tid": 7, "args": {"num_tokens": 9}},
        {"pid": 1, "ph": "C", "name": "groups", "ts": 1_000_000, "args": {"live": 2}},
    ]


@given(spans=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=8))
def test_slices_of_a_track_never_overlap(tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[float, float]]) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    file = TraceFile(path, process="headrace")
    for start, seconds in spans:
        file.slice(1, "trainer", "work", start=start, end=start + seconds, args={})
    file.close()
    slices = events_of(path, "X")
    assert len(slices) == len(spans)
    assert all(event["dur"] >= 0 for event in slices)
    for before, after in pairwise(slices):
        assert before["ts"] + before["dur"] <= after["ts"]


@pytest.mark.parametrize("cut_bytes", [0, 1, 9])
def test_a_killed_trace_can_be_read_and_gone_on_with(tmp_path: Path, cut_bytes: int) -> None:
    path = tmp_path / "trace.json"
    file = TraceFile(path, process="first")
    file.count("groups", time=1.0, values={"live": 1})
    file.count("groups", time=2.0, values={"live": 2})
    left_by_the_kill = path.read_bytes()
    file.close()
    path.write_bytes(left_by_the_kill[: len(left_by_the_kill) - cut_bytes])
    assert [event["ts"] for event in events_of(path, "C")] == [1_000_000, 2_000_000][: 1 if cut_bytes else 2]
    for name in ("second", "third"):
        file = TraceFile(path, process=name)
        file.count("groups", time=1.5, values={"live": 3})
        file.close()
    assert [(event["pid"], event["args"]["name"]) for event in events_of(path, "M")] == [(1, "first"), (2, "second"), (3, "third")]
    assert [event["pid"] for event in events_of(path, "C")] == ([1, 2, 3] if cut_bytes else [1, 1, 2, 3])
    assert json.loads(path.read_text()) == read_trace(path)


def test_a_damaged_or_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"telemetry\.profile=true"):
        read_trace(tmp_path / "trace.json")
    (tmp_path / "trace.json").write_text('[{"pid":1}\n,{"pid":\n,{"pid":1}\n]\n')
    with pytest.raises(RunFolderError, match="not a trace"):
        read_trace(tmp_path / "trace.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_run() -> None:
    file = TraceFile(Path("/dev/full"), process="headrace")
    with pytest.raises(RunFolderError, match="free space"):
        file.count("groups", time=0.0, values={"live": 0})
    file.close()
