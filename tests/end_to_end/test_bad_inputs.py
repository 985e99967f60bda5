"""Each bad input: one line that says what to change, exit code 2, and nothing loaded that need not be.

The model's weights are missing in these runs, except where a fault can show only after they are loaded: an input that is
refused with its own message was refused before.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_inputs, tiny_recipe
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from headrace.cli.main import main
from headrace.config.loading import dump_recipe
from headrace.telemetry.event_log import read_events

BAD_REWARDS = """
import math, time

def raises(completions, **columns):
    raise ZeroDivisionError("divided by the answer")

def hangs(completions, **columns):
    time.sleep(600)

def counts_wrong(completions, **columns):
    return [1.0]

def is_nan(completions, **columns):
    return [math.nan] * len(completions)

def raises_later(prompts, completions, **columns):
    if "0 + 0" not in prompts[0]:
        raise ZeroDivisionError("divided by the answer")
    return [0.0] * len(completions)

def counts_wrong_later(completions, **columns):
    return [0.0] * 2

def are_equal(completions, **columns):
    return [0.5] * len(completions)

def raises_after_the_trial(completions, **columns):
    if len(completions) != 2:
        raise ZeroDivisionError("divided by the answer")
    return [0.0] * len(completions)

def wants_more(completions, solution):
    return [0.0] * len(completions)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Inputs without the model's weights, and a recipe over them."""
    make_inputs(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "bad.py").write_text(BAD_REWARDS)
    (tmp_path / "recipe.toml").write_text(dump_recipe(tiny_recipe(tmp_path)))
    return tmp_path


def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command line; returns its one line on stderr after checking that it is one, and the exit code."""
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_a_refused_run_leaves_nothing_that_the_mended_one_would_meet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"), "data.prompt_column=promt")
    assert not (folder / "run").exists()


def reward(folder: Path, name: str) -> str:
    return f'rewards.functions=[{{type="python", function="{folder / "bad.py"}:{name}"}}]'


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.lerning_rate=1"], "did you mean 'training.learning_rate'?"),
        (["training.learning_rate=fast"], "training.learning_rate"),
        (["sampling.temperature=0"], "sampling.temperature"),
        (["schedule.type=periodic", "algorithm.advantage.scale_rewards=batch"], "needs the whole batch"),
        (["schedule.type=async", "schedule.slots=3"], "so no batch could ever fill"),
        (["algorithm.num_generations=1"], "algorithm.num_generations"),
        (["algorithm.num_minibatches=3"], "does not divide"),
        (["sampling.top_p=0.5"], "every importance ratio would be biased"),
        (["rewards.functions=[]"], "rewards.functions is empty"),
        (["model.name_or_path=SmolLM2-135M-Instruct-typo"], "did you mean SmolLM2-135M-Instruct?"),
        (["model.name_or_path=./nowhere"], "there is no model './nowhere'"),
        (["data.source.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["data.prompt_column=promt"], "did you mean 'prompt'?"),
        (["data.max_prompt_length=2"], "all 12 prompts are longer than data.max_prompt_length = 2 tokens"),
        (["data.held_out=12"], "leaves nothing to train on"),
        (["training.token_budget=10"], "set training.token_budget to 14 or more"),
        (["telemetry.report_to=['trackio']"], "pip install 'headrace[trackio]'"),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_a_bad_setting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    if "max_prompt_length" in overrides[0] or "token_budget" in overrides[0]:
        make_inputs(folder)  # lengths need the tokenizer, which is read after a look at the model's folder
    assert message in complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"), *overrides)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "ZeroDivisionError: divided by the answer"),
        ("hangs", "ran longer than time_limit_seconds = 0.5"),
        ("counts_wrong", "'counts_wrong' returned 1"),
        ("is_nan", "nan"),
        ("wants_more", "'solution'"),
        ("absent", "absent"),
    ],
)
def test_a_bad_reward_is_found_in_the_trial_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    said = complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"), reward(folder, name), "rewards.time_limit_seconds=0.5")
    assert message in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises_later", "4 groups in a row (rewards.max_failed_groups)"),
        ("counts_wrong_later", "'counts_wrong_later' returned 2"),
    ],
)
def test_a_reward_that_fails_only_on_real_rollouts_ends_the_run_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    make_inputs(folder)
    arguments = [str(folder / "recipe.toml"), reward(folder, name), "rewards.max_failed_groups=4"]
    monkeypatch.setattr(sys, "argv", ["headrace", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("are_equal", "12 had rewards that tell none of their rollouts apart, which algorithm.dynamic_sampling leaves out; take easier"),
        ("raises_after_the_trial", "12 had too few scored rollouts, because reward functions failed; mend the reward functions"),
    ],
)
def test_prompts_that_end_without_a_step_leave_what_happened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    make_inputs(folder)
    recipe = folder / "recipe.toml"
    sections = {"algorithm": {"name": "dapo"}, "data": {"held_out": 0}, "training": {"max_steps": None}}
    recipe.write_text(dump_recipe(tiny_recipe(folder, **sections)))
    for resume in ([], ["--resume"]):
        monkeypatch.setattr(sys, "argv", ["headrace", "train", str(recipe), reward(folder, name), *resume])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        captured = capsys.readouterr()
        last = captured.err.strip().splitlines()[-1]
        assert last.startswith(f"error: the prompts ended without a training step, because all 12 groups were discarded: {message}")
        assert "finished" not in captured.out
        assert {path.name for path in (folder / "run").iterdir()} >= {"recipe.toml", "events.jsonl"}
        assert not [
            path.name for path in (folder / "run").iterdir() if path.name in ("final", "summary.json", "curves.png", "checkpoint-0")
        ]
    discarded = [event for event in read_events(folder / "run" / "events.jsonl") if event["event"] == "GroupDiscarded"]
    assert len(discarded) == 24
    assert "exists already" in complaint(monkeypatch, capsys, "train", str(recipe), reward(folder, name))


@pytest.mark.parametrize("content", ["", '{"prompt": "what"}\n{"prompt": 7'], ids=["empty", "cut"])
def test_a_bad_data_file(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (folder / "data.jsonl").write_text(content)
    assert "data.jsonl" in complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"))


def test_weights_that_are_missing_or_cut_short(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(folder / "recipe.toml")
    assert "has no weights" in complaint(monkeypatch, capsys, "train", recipe)
    make_inputs(folder)
    os.truncate(folder / "model" / "model.safetensors", 20_000)
    assert "is damaged: it has 20000 bytes" in complaint(monkeypatch, capsys, "train", recipe, "--resume")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (T5ForConditionalGeneration(T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)), "only causal language"),
        (GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2, n_positions=5)), "set data.max_prompt_length below 5"),
    ],
    ids=["encoder-decoder", "too few positions"],
)
def test_a_model_that_cannot_be_trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Any, message: str
) -> None:
    model.save_pretrained(folder / "model")
    assert message in complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"))


def test_a_run_folder_that_exists(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "notes.txt").write_text("mine")
    assert "exists already" in complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"))
    assert [path.name for path in (folder / "run").iterdir()] == ["notes.txt"]


def test_a_run_folder_that_cannot_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    said = complaint(monkeypatch, capsys, "train", str(folder / "recipe.toml"), f"run.output_dir={folder / 'file' / 'run'}")
    assert "Not a directory" in said


@pytest.mark.parametrize("kilobytes", [1, 24], ids=["event log", "checkpoint"])
def test_a_full_disk_is_told_in_one_line(folder: Path, kilobytes: int) -> None:
    """A limit on the size of files fails like a full disk. The weights are larger than 24 kB, the event log reaches 1 kB."""
    make_inputs(folder)
    command = f"ulimit -f {kilobytes * 2}; exec {sys.executable} -m headrace train {folder / 'recipe.toml'}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 2, ended.stderr
    assert last.startswith("error: ")
    assert "free space" in last
    assert "Traceback" not in ended.stderr
