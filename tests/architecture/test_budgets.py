"""Sizes and names that keep the code readable; an exception has to be argued for here."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
LARGEST_FILE = 400
"""Lines."""
LARGEST_FUNCTION = 50
"""Statements, those of nested functions included."""
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}


def files() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 30
    return found


def test_files_are_short() -> None:
    lengths = {str(file.relative_to(SOURCE)): len(file.read_text(encoding="utf-8").splitlines()) for file in files()}
    assert {name: length for name, length in lengths.items() if length >= LARGEST_FILE} == {}


def test_functions_are_short() -> None:
    too_long = {
        f"{file.relative_to(SOURCE)}:{function.name}": statements(function)
        for file in files()
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and statements(function) > LARGEST_FUNCTION
    }
    assert too_long == {}


def statements(function: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1


def test_names_say_what_a_module_is_about() -> None:
    named = {file for file in files() if VAGUE_NAMES & set((file.stem if file.stem != "__init__" else file.parent.name).split("_"))}
    assert named == set()


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(file.relative_to(SOURCE)) for file in files() if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))]
    assert silent == []
