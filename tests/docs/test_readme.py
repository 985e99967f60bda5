"""Every `headrace` command and every Python block of the README, run: with a tiny model, for one step."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from tiny_runs import make_inputs

from headrace.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    if line.startswith("headrace ")
]
SMALL = ["training.max_steps=1", "sampling.max_completion_length=4", "training.prompts_per_step=2", "evaluation.num_rollouts=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: the recipes, with a tiny model in place of the packaged one."""
    here = tmp_path_factory.mktemp("readme")
    make_inputs(here)
    (here / "recipes").symlink_to(ROOT / "recipes")
    return here


def test_the_readme_has_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"check", "train", "eval", "models", "algorithms"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the README: later ones use what earlier ones left."""
    arguments = shlex.split(command)
    if arguments[1] in ("train", "eval"):
        # Chat prompts: the tiny tokenizer has no template of its own.
        template = "model.chat_template={% for message in messages %}{{ message.content }} {% endfor %}"
        arguments[3:3] = [f"model.name_or_path={folder / 'model'}", template, *SMALL]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_the_python_block_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for language, block in BLOCKS if language == "python"]
    code = (
        code.replace("SmolLM2-135M-Instruct", str(folder / "model"))
        .replace('"max_steps": 20', '"max_steps": 1')
        .replace("runs/mine", "runs/api")
    )
    assert "runs/api" in code
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert (folder / "runs" / "api" / "final" / "config.json").is_file()
