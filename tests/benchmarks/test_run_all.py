import json
from pathlib import Path

import pytest


def test_a_failure_is_recorded_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import run_all

    results = tmp_path / "new" / "latest.json"
    good = f"import json; print('so far'); print(json.dumps({{'kept': json.load(open({str(results)!r}))['benchmarks']}}))"
    monkeypatch.setattr(run_all, "commands", lambda *_: {"controller": ["-c", "raise SystemExit(3)"], "decode": ["-c", good]})
    monkeypatch.setattr(run_all, "resolve", str)
    with pytest.raises(SystemExit) as ended:
        run_all.main(["--results", str(results)])
    whole = json.loads(results.read_text())
    assert ended.value.code == 1
    assert set(whole) == {"finished", "machine", "targets", "benchmarks"}
    failed, passed = whole["benchmarks"]["controller"], whole["benchmarks"]["decode"]
    assert "exit code 3" in failed["error"]
    assert passed["kept"] == {"controller": failed}, "what is done must be on disk before the next one starts"
    shown = capfd.readouterr().out
    assert all(part in shown for part in ("== decode (2 of 2)", "so far\n", "not measured"))


def test_only_keeps_the_results_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import run_all

    results = tmp_path / "latest.json"
    monkeypatch.setattr(run_all, "commands", lambda *_: {"decode": ["-c", "print('{\"value\": 3}')"]})
    monkeypatch.setattr(run_all, "resolve", str)
    results.write_text(json.dumps({"benchmarks": {"training": {"quickstart": 1}, "decode": {"value": 2}}}))
    with pytest.raises(SystemExit) as ended:
        run_all.main(["--results", str(results), "--only", "decode"])
    found = json.loads(results.read_text())["benchmarks"]
    assert ended.value.code == 0
    assert (found["training"], found["decode"]["value"]) == ({"quickstart": 1}, 3)


def test_commands_name_scripts_and_only_the_peers_that_are_there() -> None:
    from run_all import commands, parse_arguments

    alone = commands("model", parse_arguments([]))
    assert all(Path(command[0]).is_file() for command in alone.values())
    assert not any("trl" in command or "vllm" in command for command in alone.values())
    with_peers = commands("model", parse_arguments(["--trl-python", "trl/python", "--vllm-python", "vllm/python"]))
    assert "vllm/python" in with_peers["decode"]
    assert "trl/python" in with_peers["end_to_end_few_shot"]
