import inspect
import os
import pickle
import subprocess
import sys

import pytest

from headrace.errors import RecipeError
from headrace.python_functions import ImportedFunction, load_function

SOURCE = """
import threading
from neighbour import FACTOR
LOCK = threading.Lock()  # cannot be pickled
NUMBER = 3
def reward(completions, answer):
    with LOCK:
        return [FACTOR * len(c) for c in completions]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_rewards.py").write_text(SOURCE)
    (tmp_path / "neighbour.py").write_text("FACTOR = 2.0")
    yield tmp_path
    sys.modules.pop("neighbour", None)


def test_function_of_a_file_may_import_its_neighbours(folder):
    function = load_function(str(folder / "my_rewards.py"), "reward", "some.key", (str(folder),))
    assert function(["abc"], [1]) == [6.0]
    assert load_function(str(folder / "my_rewards.py"), "reward", "some.key", ()) is function


def test_changed_file_is_read_again(folder):
    path = folder / "my_rewards.py"
    load_function(str(path), "reward", "some.key", (str(folder),))
    path.write_text("def reward(completions): return 'new'")
    os.utime(path, ns=(0, 0))
    assert load_function(str(path), "reward", "some.key", ())([]) == "new"


def test_pickle_names_the_function_instead_of_copying_it(folder):
    function = ImportedFunction(str(folder / "my_rewards.py"), "reward", key="some.key", import_folders=(str(folder),))
    assert function(["abc"], [1]) == [6.0]
    assert list(inspect.signature(function).parameters) == ["completions", "answer"]
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(['abc'], [1]))"
    run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(function), capture_output=True, timeout=30, check=True)
    assert run.stdout == b"[6.0]\n"


def test_function_of_a_module():
    assert load_function("os.path", "basename", "some.key", ()) is os.path.basename


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("no_such_module.at_all", "reward", "no_such_module.at_all:reward cannot be imported: ModuleNotFoundError"),
        ("{folder}/missing.py", "reward", "cannot be imported: FileNotFoundError"),
        ("{folder}/broken.py", "reward", "cannot be imported: SyntaxError"),
        ("{folder}/leaving.py", "reward", "cannot be imported: SystemExit: 5"),
        ("{folder}/my_rewards.py", "rewrad", "some.key: .*my_rewards.py has no function 'rewrad'; it has the functions reward$"),
        ("{folder}/my_rewards.py", "NUMBER", "has as 'NUMBER' 3, which cannot be called"),
    ],
)
def test_errors_name_function_and_reason(folder, module, name, message):
    (folder / "broken.py").write_text("def reward(:")
    (folder / "leaving.py").write_text("raise SystemExit(5)")
    with pytest.raises(RecipeError, match=message):
        load_function(module.format(folder=folder), name, "some.key", (str(folder),))
