import sys

import pytest

from headrace.errors import PartDiedError, StalledError

ECHO = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if line.strip() == "fail":
        raise SystemExit("this is why")
    if line.strip() != "sleep":
        print(json.dumps({"double": 2 * int(line)}), flush=True)
"""


def echo(answer_seconds: float = 30):
    from peer_process import PeerProcess

    return PeerProcess("echo", [sys.executable, "-c", ECHO], start_seconds=30, answer_seconds=answer_seconds)


def test_answers_one_line_for_each_line() -> None:
    process = echo()
    assert process.facts == {"ready": True}
    assert [process.ask(number)["double"] for number in (3, 4)] == [6, 8]
    process.close()


def test_a_peer_that_dies_says_why() -> None:
    process = echo()
    with pytest.raises(PartDiedError, match=r"echo ended with exit code 1(.|\n)*this is why"):
        process.ask("fail")
    process.close()


def test_a_peer_that_hangs_is_ended() -> None:
    process = echo(answer_seconds=0.2)
    with pytest.raises(StalledError, match=r"0\.2 s for an answer of echo"):
        process.ask("sleep")
    process.close()


def test_a_peer_waits_as_it_does_without_headrace(monkeypatch: pytest.MonkeyPatch) -> None:
    from peer_process import PeerProcess

    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("GOMP_SPINCOUNT", "2000")
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MINE")
    report = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {names}}}))"
    process = PeerProcess("report", [sys.executable, "-c", report], start_seconds=30, answer_seconds=30, environment={"MINE": "1"})
    assert process.facts == {"OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": None, "MINE": "1"}
    process.close()
