"""Every `headrace` command and every Python block of the README, run: with a tiny model, for one step."""

from pathlib import Path

import pytest
from page_commands import blocks_of, commands_of, make_folder, run_command

COMMANDS = commands_of("README.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("readme"))


def test_the_readme_has_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"check", "train", "eval", "models", "algorithms"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command(command, folder, monkeypatch)


def test_the_python_block_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for language, block in blocks_of("README.md") if language == "python"]
    code = (
        code.replace("SmolLM2-135M-Instruct", str(folder / "model"))
        .replace('"max_steps": 20', '"max_steps": 1')
        .replace("runs/mine", "runs/api")
    )
    assert "runs/api" in code
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert (folder / "runs" / "api" / "final" / "config.json").is_file()
