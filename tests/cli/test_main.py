"""The command line: one line for every error, and the exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headrace import __version__
from headrace.cli import main as command
from headrace.errors import DataError, StalledError

REPOSITORY = Path(__file__).parents[2]
QUICKSTART = str(REPOSITORY / "recipes" / "quickstart.toml")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    with pytest.raises(SystemExit) as caught:
        command.main()
    return caught.value.code if isinstance(caught.value.code, int) else 0


def test_check_prints_the_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "check", QUICKSTART, "schedule.type=sync") == 0
    assert "schedule           sync, 8 slots" in capsys.readouterr().out


def test_what_the_user_can_mend_is_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "check", QUICKSTART, "training.max_steps=0") == command.USER_ERROR == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (f"error: {QUICKSTART} with training.max_steps=0: training.max_steps must be at least 1 (given: 0)\n")


@pytest.mark.parametrize("name", ["train", "eval"])
def test_a_bad_recipe_fails_every_command_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    options = ["--model", "nowhere"] if name == "eval" else []
    assert run(monkeypatch, name, "none.toml", *options) == 2
    assert capsys.readouterr().err == "error: there is no recipe 'none.toml'; give the path of a .toml file\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("rows are\nmissing"), 2, "error: rows are missing\n"),
        (StalledError("waited 3 s for groups"), 1, "failed: waited 3 s for groups\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(command, "app", app)
    assert run(monkeypatch) == code
    assert capsys.readouterr().err == line


def test_misuse_of_the_command_line_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "check") == 2
    assert "Missing argument 'RECIPE'" in capsys.readouterr().err


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"headrace {__version__}\n"


def test_models_are_listed_with_the_command_that_fetches_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert run(monkeypatch, "models") == 0
    assert "headrace models SmolLM2-135M-Instruct" in capsys.readouterr().out


def test_an_unknown_packaged_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models", "GPT-7") == 2
    assert capsys.readouterr().err.startswith("error: there is no packaged model 'GPT-7'")


def test_checking_never_imports_torch() -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['headrace', 'check', {QUICKSTART!r}]\n"
        "from headrace.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'matplotlib'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
