"""Every command and every recipe section of docs/lora.md, run: with a tiny model, for one step."""

import tomllib
from pathlib import Path

import pytest
from page_commands import ROOT, blocks_of, commands_of, make_folder, run_command

from headrace.config.lora import LoraSection

COMMANDS = commands_of("docs/lora.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("lora"))


def test_the_page_shows_every_command() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["check", "train", "eval", "export"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command(command, folder, monkeypatch)
    if command.startswith("headrace export"):
        assert (folder / command.split()[-1] / "model.safetensors").is_file()


def test_the_section_is_the_recipes() -> None:
    (section,) = [tomllib.loads(block)["lora"] for language, block in blocks_of("docs/lora.md") if language == "toml"]
    assert section == tomllib.loads((ROOT / "recipes" / "lora.toml").read_text(encoding="utf-8"))["lora"]
    assert LoraSection.model_validate(section)
