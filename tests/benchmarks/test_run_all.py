import json
from pathlib import Path

import pytest


def test_a_failure_is_recorded_and_the_others_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from run_all import run_benchmarks, write_results

    good = "import json; print('so far'); print(json.dumps({'benchmark': 'good', 'value': 3}))"
    results = run_benchmarks({"bad": ["-c", "raise SystemExit(3)"], "good": ["-c", good]})
    assert "exit code 3" in str(results["bad"]["error"])
    assert (results["good"]["value"], "error" in results["good"]) == (3, False)
    assert "so far\n" in capfd.readouterr().out
    write_results(results, tmp_path / "new" / "latest.json")
    whole = json.loads((tmp_path / "new" / "latest.json").read_text())
    assert set(whole) == {"finished", "machine", "targets", "benchmarks"}
    assert "not measured" in capfd.readouterr().out


def test_commands_name_scripts_and_only_the_peers_that_are_there() -> None:
    from run_all import commands, parse_arguments

    alone = commands("model", parse_arguments([]))
    assert all(Path(command[0]).is_file() for command in alone.values())
    assert not any("trl" in command or "vllm" in command for command in alone.values())
    with_peers = commands("model", parse_arguments(["--trl-python", "trl/python", "--vllm-python", "vllm/python"]))
    assert "vllm/python" in with_peers["decode"]
    assert "trl/python" in with_peers["end_to_end_few_shot"]
