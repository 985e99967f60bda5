"""Runs what a page of the documentation tells its readers to run: with a tiny model, for one step."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from tiny_runs import make_inputs

from headrace.cli.main import main

ROOT = Path(__file__).parents[1]
SMALL = ["training.max_steps=1", "sampling.max_completion_length=4", "training.prompts_per_step=2", "evaluation.num_rollouts=1"]


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    """Every `headrace` command, in the order of the page: later ones use what earlier ones left."""
    lines = [line for language, block in blocks_of(page) if not language for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("headrace ")]


def make_folder(here: Path) -> Path:
    """Where the commands run: the recipes, with a tiny model in place of the packaged one."""
    make_inputs(here)
    (here / "recipes").symlink_to(ROOT / "recipes")
    return here


def run_command(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it as the command line does; it must end well."""
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
