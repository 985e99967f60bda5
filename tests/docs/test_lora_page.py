"""Every command and every recipe section of docs/lora.md, run: with a tiny model, for one step."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from tiny_runs import make_inputs

from headrace.cli.main import main
from headrace.config.lora import LoraSection

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "docs" / "lora.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
SMALL = ["training.max_steps=1", "sampling.max_completion_length=4", "training.prompts_per_step=2", "evaluation.num_rollouts=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: the recipes, with a tiny model in place of the packaged one."""
    here = tmp_path_factory.mktemp("lora")
    make_inputs(here)
    (here / "recipes").symlink_to(ROOT / "recipes")
    return here


def test_the_page_shows_every_command() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["check", "train", "eval", "export"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page: later ones use what earlier ones left."""
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
    if arguments[1] == "export":
        assert (folder / arguments[-1] / "model.safetensors").is_file()


def test_the_section_is_the_recipes() -> None:
    (section,) = [tomllib.loads(block)["lora"] for language, block in BLOCKS if language == "toml"]
    assert section == tomllib.loads((ROOT / "recipes" / "lora.toml").read_text(encoding="utf-8"))["lora"]
    assert LoraSection.model_validate(section)
