import math

import pyarrow.parquet as pq
import pytest
from telemetry.small_events import evaluation, prompt, reward, rollout, step_finished, trained_group
from telemetry.test_run_files import largest_file

from headrace.errors import RunFolderError
from headrace.telemetry.samples import SamplesWriter, prompt_text


def test_a_step_file_has_one_row_a_rollout(tmp_path):
    rewards = [reward(1.5, right=1.0, short=0.5), reward(None, right=None, short=0.25, error="right: KeyError")]
    group = trained_group(7, [rollout([1, 1, 2], text="4"), rollout([2], text="five", finish_reason="length")], rewards, [0.7, None])
    SamplesWriter(tmp_path).handle(0.0, step_finished(3, [group]))
    first, second = pq.read_table(tmp_path / "step_000003.parquet").to_pylist()
    assert first == {
        "step": 3,
        "group_id": 7,
        "epoch": 0,
        "row": 7,
        "prompt": "2+2=",
        "completion": "4",
        "reward": 1.5,
        "rewards/right": 1.0,
        "rewards/short": 0.5,
        "advantage": pytest.approx(0.7),
        "min_version": 1,
        "max_version": 2,
        "versions": [1, 1, 2],
        "finish_reason": "stop",
        "num_tokens": 3,
        "error": None,
    }
    assert (second["reward"], second["rewards/right"], second["advantage"]) == (None, None, None)
    assert (second["finish_reason"], second["error"]) == ("length", "right: KeyError")


def test_an_evaluation_file(tmp_path):
    SamplesWriter(tmp_path, every=5).handle(0.0, evaluation(0, 0.5, answers=[(3, "yes", 1.0), (4, "no", 0.0)]))
    table = pq.read_table(tmp_path / "eval_000000.parquet")
    assert table["prompt"].to_pylist() == ["question 3", "question 4"]
    assert table["completion"].to_pylist() == ["yes", "no"]
    assert table["advantage"].null_count == 2


def test_only_every_nth_step_is_written(tmp_path):
    samples = SamplesWriter(tmp_path, every=2)
    for version in range(1, 6):
        samples.handle(0.0, step_finished(version))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002.parquet", "step_000004.parquet"]


def test_functions_that_did_not_apply_to_a_group_are_null_there(tmp_path):
    groups = [trained_group(0, [rollout([0])], [reward(1.0, right=1.0)]), trained_group(1, [rollout([0])], [reward(2.0, judge=2.0)])]
    SamplesWriter(tmp_path).handle(0.0, step_finished(1, groups))
    table = pq.read_table(tmp_path / "step_000001.parquet")
    assert table["rewards/right"].to_pylist() == [1.0, None]
    assert table["rewards/judge"].to_pylist() == [None, 2.0]


def test_any_text_and_number_can_be_stored(tmp_path):
    group = trained_group(0, [rollout([0], text="\ud800 \0 é")], [reward(1.0, odd=math.inf)])
    SamplesWriter(tmp_path).handle(0.0, step_finished(1, [group]))
    table = pq.read_table(tmp_path / "step_000001.parquet")
    assert table["completion"].to_pylist() == ["? \0 é"]
    assert table["rewards/odd"].to_pylist() == [math.inf]


def test_a_full_disk_leaves_no_half_file(tmp_path):
    with largest_file(100), pytest.raises(RunFolderError, match=r"step_000001\.parquet"):
        SamplesWriter(tmp_path).handle(0.0, step_finished(1))
    assert list(tmp_path.iterdir()) == []


def test_a_conversation_is_readable():
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})
    assert prompt_text(prompt(text=messages)) == "[system]\nBe brief.\n\n[user]\n2+2?"
    assert prompt_text(prompt(text="2+2?")) == "2+2?"
