import json
from pathlib import Path

import pytest


def test_runs_each_schedule(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import schedules

    schedules.main(["--model", str(model_folder), "--schedules", "async", "--steps", "4", "--runs", "1"])
    *shown, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)["schedules"]["async"]
    assert "async" in shown[0]
    assert found["seconds_per_step"] > 0
    assert found["tokens_per_second"] > 0
    assert 0 <= found["trainer_wait_share"] <= 1
    assert found["max_staleness"] <= 1
