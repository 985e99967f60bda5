from pathlib import Path

import pytest
from rich.console import Console
from tiny_runs import tiny_recipe

from headrace.launch.run_folder import RunFolder
from headrace.launch.sinks import make_sinks
from headrace.telemetry.trace import TraceLog


@pytest.mark.parametrize("profile", [False, True])
def test_a_trace_is_written_only_when_asked_for(tmp_path: Path, profile: bool) -> None:
    folder = RunFolder(tmp_path / "run")
    recipe = tiny_recipe(tmp_path, telemetry={"profile": profile})
    sinks = make_sinks(recipe, folder, Console(quiet=True), version=0, summary_state=None)
    sinks.close()
    assert any(isinstance(sink, TraceLog) for sink in sinks.all) is profile
    assert folder.trace.exists() is profile
