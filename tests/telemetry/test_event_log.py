import json
import math
from pathlib import Path

import pytest
from telemetry.small_events import engine, evaluation, ledger, step_finished

from headrace.errors import RunFolderError
from headrace.telemetry.event_log import EventLog, read_events
from headrace.telemetry.events import CheckpointSaved, GroupAdmitted, GroupReady, RunFinished, RunStarted

EVERY_KIND = [
    RunStarted(version=0, last_version=2, slots=4, max_staleness=1, prompts_per_step=2),
    GroupAdmitted(group_id=0, epoch=0, row=5, version=0, deadline=1),
    GroupReady(group_id=0, mean_reward=0.5, num_failed=1, error="judge: Zeitüberschreitung"),
    evaluation(0, 0.5, answers=[(3, "a secret text", 1.0)]),
    step_finished(1, metrics={"loss": math.nan, "entropy": 0.25}, stats=engine(generated=7)),
    CheckpointSaved(version=1, folder=Path("/somewhere/else/checkpoint-1"), seconds=0.5),
    RunFinished(version=1, interrupted=False, ledger=ledger(discarded={"stale": 1, "no_reward": 2})),
]


def write(path, events):
    log = EventLog(path)
    for number, event in enumerate(events):
        log.handle(number / 4, event)
    log.close()


def test_a_line_is_time_kind_and_fields(tmp_path):
    write(tmp_path / "events.jsonl", EVERY_KIND[1:2])
    line = (tmp_path / "events.jsonl").read_text()
    assert line == '{"time":0.0,"event":"GroupAdmitted","group_id":0,"epoch":0,"row":5,"version":0,"deadline":1}\n'


def test_a_step_keeps_numbers_but_no_tokens_or_texts(tmp_path):
    write(tmp_path / "events.jsonl", EVERY_KIND)
    step = next(event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "StepFinished")
    assert step["group_ids"] == [0]
    assert step["report"]["metrics"] == {"entropy": 0.25, "loss": None}
    assert step["ledger"]["in_flight"] == 3
    assert step["timings"] == {"waiting_for_groups": 1.0, "computing": 2.0, "publishing": 0.5, "other": 0.5}
    assert step["engine"]["generated_tokens"] == 7
    assert "groups" not in step
    assert "secret" not in (tmp_path / "events.jsonl").read_text()


def test_the_same_events_give_the_same_bytes(tmp_path):
    write(tmp_path / "one.jsonl", EVERY_KIND)
    elsewhere = [*EVERY_KIND]
    elsewhere[5] = CheckpointSaved(version=1, folder=Path("/another/run/checkpoint-1"), seconds=0.5)
    elsewhere[6] = RunFinished(version=1, interrupted=False, ledger=ledger(discarded={"no_reward": 2, "stale": 1}))
    write(tmp_path / "two.jsonl", elsewhere)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_a_resumed_run_goes_on_behind_a_cut_line(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, EVERY_KIND[:3])
    path.write_bytes(path.read_bytes()[:-5])
    assert [event["event"] for event in read_events(path)] == ["RunStarted", "GroupAdmitted"]
    write(path, EVERY_KIND[3:])
    kinds = [event["event"] for event in read_events(path)]
    assert kinds == ["RunStarted", "GroupAdmitted", "EvaluationFinished", "StepFinished", "CheckpointSaved", "RunFinished"]
    assert all(isinstance(json.loads(line)["time"], float) for line in path.read_text().splitlines())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_run():
    log = EventLog(Path("/dev/full"))
    with pytest.raises(RunFolderError, match="free space"):
        log.handle(0.0, EVERY_KIND[0])
    log.close()
