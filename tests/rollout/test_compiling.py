import shutil
import sys
from pathlib import Path

import pytest
import torch

from headrace.rollout.compiling import compiled

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="no C compiler here")


def test_a_second_load_takes_what_was_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert compiled("drawing.c") is not None
    (library,) = (tmp_path / "kernels").iterdir()
    made = library.stat().st_mtime_ns
    assert compiled("drawing.c") is not None
    assert library.stat().st_mtime_ns == made


def test_sources_and_constants_have_libraries_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for head_size in (8, 16):
        assert compiled("kernels.c", head_size=head_size, siblings=1) is not None
    assert compiled("drawing.c") is not None
    assert len(list((tmp_path / "kernels").iterdir())) == 3


@pytest.mark.parametrize("path", ["", "broken"], ids=["no compiler", "a compiler that fails"])
def test_without_a_working_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str):
    (tmp_path / "broken").mkdir()
    compiler = tmp_path / "broken" / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else str(tmp_path / "empty"))
    assert compiled("drawing.c") is None


def test_loading_leaves_the_smallest_numbers_of_the_process_alone():
    assert compiled("drawing.c") is not None
    assert torch.tensor(1e-40).mul(2).item() > 0, "a library linked with -ffast-math would flush it to 0"
