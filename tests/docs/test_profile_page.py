"""The commands of docs/profile.md, run: with a tiny model, for a step or two."""

import runpy
import shlex
import sys
from pathlib import Path

import pytest
from tiny_runs import make_inputs

from headrace.cli.main import main
from headrace.simulator.simulation import Scenario, simulate
from headrace.telemetry.trace import TraceLog
from headrace.telemetry.trace_file import read_trace

ROOT = Path(__file__).parents[2]
COMMANDS = [
    line for line in (ROOT / "docs" / "profile.md").read_text(encoding="utf-8").splitlines() if line.startswith(("headrace ", "python "))
]
SMALL = ["training.max_steps=2", "sampling.max_completion_length=4", "training.prompts_per_step=2", "evaluation.num_rollouts=1"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that make a recipe small; the commands run where its model is."""
    make_inputs(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    # Chat prompts: the tiny tokenizer has no template of its own.
    template = "model.chat_template={% for message in messages %}{{ message.content }} {% endfor %}"
    return [f"model.name_or_path={tmp_path / 'model'}", template, *SMALL]


def test_the_command_writes_a_trace(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = COMMANDS
    monkeypatch.setattr(sys, "argv", [*shlex.split(train), *small])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    names = {event.get("name") for event in read_trace(tmp_path / "runs" / "profiled" / "trace.json")}
    assert names >= {"step 2", "micro-batch", "optimizer step", "publish 2", "load weights", "evaluate 0", "checkpoint-2", "group 0"}


def test_the_script_makes_the_runs_that_are_missing_and_draws(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, draw = COMMANDS
    script = runpy.run_path(str(ROOT / shlex.split(draw)[1]))
    monkeypatch.setitem(script["main"].__globals__, "PICTURE", tmp_path / "picture.png")
    folder = tmp_path / "runs" / "tiny"
    for schedule, scenario in {"periodic": Scenario(max_staleness=0, streams=True), "async": Scenario(max_staleness=1)}.items():
        simulate(scenario, folder / schedule, [TraceLog(folder / schedule / "trace.json")])
        (folder / schedule / "summary.json").touch()
    script["main"](["runs/tiny", *small])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    slices = script["read_slices"](folder / "sync" / "trace.json")
    assert [each.name for each in slices if each.track == "steps"] == ["step 1", "step 2"]
    assert {each.args["version"] for each in slices if each.track.startswith("rollouts")} == {0, 1}
    assert all(each.start <= each.end for each in slices)
