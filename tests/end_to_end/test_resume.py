"""Runs that are killed or interrupted, in processes of their own, and go on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_runs import make_inputs, parameters, tiny_recipe, trained_prompts
from training.policies import relative_gap

from headrace.config.loading import dump_recipe
from headrace.errors import CheckpointError, DataError, RunFolderError
from headrace.launch.run import train

QUIET = Console(quiet=True)

LAUNCHER = """
import os, sys
import headrace.launch.run  # seconds of imports, once; every run is a fork without any thread yet
from headrace.cli.main import main
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        sys.argv = ["headrace", *line.split()]
        main()
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Launcher:
    """Runs `headrace …` commands one after the other; each can be sent signals."""

    def __init__(self, log: Path) -> None:
        self._path = log
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def start(self, *arguments: str) -> int:
        """Begin a command; returns its process id."""
        self._stdin.write(" ".join(arguments) + "\n")
        self._stdin.flush()
        return int(self._next_number())

    def wait(self) -> int:
        """The command's exit code; minus the signal that killed it."""
        return int(self._next_number())

    def wait_after_start(self, *arguments: str) -> int:
        """Run a command to its end."""
        self.start(*arguments)
        return self.wait()

    def output(self) -> str:
        """All that the commands have printed."""
        return self._path.read_text()

    def close(self) -> None:
        self._stdin.close()
        self._process.kill()
        self._process.wait(timeout=60)
        self._stdout.close()
        self._log.close()

    def _next_number(self) -> str:
        line = self._stdout.readline()
        assert line, f"the launcher ended: {self.output()}"
        return line


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("launcher") / "stderr.txt")
    yield started
    started.close()


def write_recipe(folder: Path, **sections: dict[str, object]) -> Path:
    make_inputs(folder)
    path = folder / "recipe.toml"
    path.write_text(dump_recipe(tiny_recipe(folder, **sections)))
    return path


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.01)


ASYNC = {"type": "async", "max_staleness": 2}


def test_a_run_killed_at_ten_random_moments_trains_every_prompt_once(launcher: Launcher, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, schedule=ASYNC, training={"max_steps": None, "num_train_epochs": 30}, checkpoint={"every_steps": 3})
    events = tmp_path / "run" / "events.jsonl"
    moments = random.Random(0)
    kills = 0
    for _ in range(40):
        lines = events.read_text().count("\n") if events.exists() else 0
        child = launcher.start("train", str(recipe), "--resume")
        if kills < 10:
            wait_for(lambda lines=lines: events.exists() and events.read_text().count("\n") > lines, "the first event")
            time.sleep(moments.random() * 1.2)
            os.kill(child, signal.SIGKILL)
        code = launcher.wait()
        kills += code == -signal.SIGKILL
        if code == 0:
            break
    assert code == 0
    assert kills == 10
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    every = Counter((epoch, row) for epoch in range(30) for row in range(12))
    assert Counter((epoch, row) for _, epoch, row in trained_prompts(tmp_path / "run")) == every
    assert summary["ledger"] == {**summary["ledger"], "admitted": 360, "in_flight": 0, "ready": 0, "trained": 360, "discarded": {}}
    assert summary["steps"] == 90
    assert summary["worst_staleness"] <= 2
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if "reward" in row] == list(range(1, 91))
    assert summary["tokens_trained"] == steps[-1]["num_tokens"] == summary["ledger"]["trained_tokens"]


def test_a_resumed_sync_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Three steps and three more equal six: random state, optimizer, learning rate, order of the data."""
    make_inputs(tmp_path)
    training = {"lr_scheduler": "linear", "warmup_steps": 2, "max_steps": 6}
    recipe = tiny_recipe(tmp_path, training=training, checkpoint={"every_steps": 3}, algorithm={"num_minibatches": 2})
    whole = train(recipe, base_folder=tmp_path, console=QUIET)
    parts = tmp_path / "parts"
    shutil.copytree(whole.folder, parts)
    for name in ("checkpoint-6", "final"):
        shutil.rmtree(parts / name)
    (parts / "summary.json").unlink()
    recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"output_dir": str(parts)})})
    resumed = train(recipe, base_folder=tmp_path, resume=True, console=QUIET)
    assert resumed.summary["steps"] == 6
    assert resumed.summary["tokens_trained"] == whole.summary["tokens_trained"]
    assert trained_prompts(parts) == trained_prompts(whole.folder)
    first, second = parameters(whole.model_folder), parameters(resumed.model_folder)
    # Equal but for rounding: what is decoded together depends on time, and products of other numbers of rows round in other ways.
    assert relative_gap(first, second) < 1e-5


@pytest.mark.parametrize("training", [{}, {"max_steps": None, "num_train_epochs": 1}], ids=["steps", "epochs"])
def test_a_finished_run_is_not_trained_again(training: dict[str, Any], tmp_path: Path) -> None:
    make_inputs(tmp_path)
    recipe = tiny_recipe(tmp_path, training=training)
    first = train(recipe, base_folder=tmp_path, console=QUIET)
    written = (first.model_folder / "model.safetensors").stat().st_mtime_ns
    again = train(recipe, base_folder=tmp_path, resume=True, console=QUIET)
    assert again.summary == json.loads((first.folder / "summary.json").read_text())
    assert (first.model_folder / "model.safetensors").stat().st_mtime_ns == written


def test_a_finished_run_goes_on_with_more_steps(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    train(tiny_recipe(tmp_path), base_folder=tmp_path, console=QUIET)
    more = train(tiny_recipe(tmp_path, training={"max_steps": 7}), base_folder=tmp_path, resume=True, console=QUIET)
    assert more.summary["steps"] == 7
    assert [step for step, _, _ in trained_prompts(more.folder)] == [step for step in range(1, 8) for _ in range(4)]


def test_a_finished_run_goes_on_with_more_epochs(tmp_path: Path) -> None:
    """Twelve prompts, four a step."""
    make_inputs(tmp_path)
    for num_epochs, steps in ((1, 3), (3, 9)):
        training = {"max_steps": None, "num_train_epochs": num_epochs}
        result = train(tiny_recipe(tmp_path, training=training), base_folder=tmp_path, resume=num_epochs > 1, console=QUIET)
        assert result.summary["steps"] == steps
    assert Counter((epoch, row) for _, epoch, row in trained_prompts(result.folder)) == Counter(product(range(3), range(12)))


def test_ctrl_c_finishes_the_step_saves_and_ends(launcher: Launcher, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, schedule=ASYNC, training={"max_steps": 100_000})
    events = tmp_path / "run" / "events.jsonl"
    child = launcher.start("train", str(recipe))
    wait_for(lambda: events.exists() and "StepFinished" in events.read_text(), "the first step")
    os.kill(child, signal.SIGINT)
    assert launcher.wait() == 130
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["interrupted"]
    assert not summary["finished"]
    assert (tmp_path / "run" / f"checkpoint-{summary['steps']}").is_dir()
    assert not (tmp_path / "run" / "final").exists()
    assert launcher.wait_after_start("train", str(recipe), f"training.max_steps={summary['steps'] + 2}", "--resume") == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == summary["steps"] + 2


def test_a_second_ctrl_c_ends_at_once(launcher: Launcher, tmp_path: Path) -> None:
    """A reward that takes a minute keeps the step from finishing; nothing is saved."""
    recipe = write_recipe(tmp_path, rewards={"functions": [{"type": "python", "function": f"{tmp_path / 'rewards.py'}:sleepy"}]})
    events = tmp_path / "run" / "events.jsonl"
    child = launcher.start("train", str(recipe), "rewards.time_limit_seconds=60")
    wait_for(lambda: events.exists() and "GroupGenerated" in events.read_text(), "the first rollouts")
    said_before = launcher.output().count("press Ctrl-C again")
    os.kill(child, signal.SIGINT)
    wait_for(lambda: launcher.output().count("press Ctrl-C again") > said_before, "the first Ctrl-C's message")
    os.kill(child, signal.SIGINT)
    assert launcher.wait() == 130
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_ctrl_c_before_the_first_step_leaves_a_run_that_goes_on(launcher: Launcher, tmp_path: Path) -> None:
    function = {"type": "python", "function": f"{tmp_path / 'slow.py'}:score"}
    recipe = write_recipe(tmp_path, rewards={"functions": [function]}, data={"held_out": 3})
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef score(completions, **columns):\n    time.sleep(0.5)\n    return [len(text) / 9 for text in completions]\n"
    )
    events, summary = tmp_path / "run" / "events.jsonl", tmp_path / "run" / "summary.json"
    child = launcher.start("train", str(recipe))
    wait_for(lambda: events.exists() and "GroupAdmitted" in events.read_text(), "the evaluation before the first step")
    os.kill(child, signal.SIGINT)
    assert launcher.wait() == 130
    assert json.loads(summary.read_text())["steps"] == 0
    assert not (tmp_path / "run" / "curves.png").exists()
    assert launcher.wait_after_start("train", str(recipe), "training.max_steps=1", "--resume") == 0
    assert json.loads(summary.read_text())["steps"] == 1
    assert (tmp_path / "run" / "curves.png").is_file()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    make_inputs(tmp_path)
    train(tiny_recipe(tmp_path, training={"max_steps": 2}), base_folder=tmp_path, console=QUIET)
    return tmp_path


def test_an_existing_run_folder_is_refused(finished: Path) -> None:
    with pytest.raises(RunFolderError, match=r"exists already, and a new run would overwrite it; go on with --resume"):
        train(tiny_recipe(finished), base_folder=finished, console=QUIET)


def test_another_recipe_is_refused(finished: Path) -> None:
    recipe = tiny_recipe(finished, training={"learning_rate": 0.5})
    with pytest.raises(CheckpointError, match=r"started with another recipe \(training.learning_rate: 0.001 there, 0.5 here\)"):
        train(recipe, base_folder=finished, resume=True, console=QUIET)


def test_other_data_are_refused(finished: Path) -> None:
    make_inputs(finished, num_prompts=9)
    with pytest.raises(DataError, match=r"\(12 prompts\), but the recipe gives data .* \(9 prompts\)"):
        train(tiny_recipe(finished, training={"max_steps": 4}), base_folder=finished, resume=True, console=QUIET)


def test_a_checkpoint_that_is_cut_short_is_refused_before_the_model_loads(finished: Path) -> None:
    weights = finished / "run" / "checkpoint-2" / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, 1000)
    (finished / "model" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=f"model.safetensors has 1000 bytes, its manifest says {size} bytes"):
        train(tiny_recipe(finished, training={"max_steps": 4}), base_folder=finished, resume=True, console=QUIET)


def test_two_runs_in_one_folder_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, schedule=ASYNC, training={"max_steps": 100_000})
    child = launcher.start("train", str(recipe))
    wait_for((tmp_path / "run" / "events.jsonl").exists, "the run to start")
    with pytest.raises(RunFolderError, match="another process is training in"):
        train(tiny_recipe(tmp_path, schedule=ASYNC, training={"max_steps": 100_000}), base_folder=tmp_path, resume=True, console=QUIET)
    os.kill(child, signal.SIGKILL)
    assert launcher.wait() == -signal.SIGKILL
