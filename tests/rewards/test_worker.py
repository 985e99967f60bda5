"""What only a real worker can show; its parts have tests of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from rewards.examples import score_once
from rewards.test_process import wait_until_ended

HANGING_SERVICE = """
import asyncio, os, time
from headrace.rewards.building import wrap_reward_functions
from headrace.rewards.service import ProcessRewardService
from rewards.examples import prompt, rollouts

def hang(completions):
    with open({pid_file!r}, "w") as file:
        print(os.getpid(), file=file)
    print("hanging")
    time.sleep(60)

service = ProcessRewardService(wrap_reward_functions([hang]), num_workers=1, time_limit_seconds=60, on_failure="exclude")
asyncio.run(service.score(prompt(), rollouts("a")))
"""


def test_worker_imports_no_torch_and_no_numpy():
    def imported(completions):
        return [float("torch" in sys.modules), float("numpy" in sys.modules)]

    rewards = score_once(imported, texts=["", ""])
    assert [reward.total for reward in rewards] == [0.0, 0.0]


def test_worker_searches_modules_where_its_parent_does(tmp_path, monkeypatch):
    (tmp_path / "only_on_the_path.py").write_text("def reward(completions): return [9.0]")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    import only_on_the_path

    assert score_once(only_on_the_path.reward, texts=["a"])[0].total == 9.0


def test_worker_is_out_of_reach_of_the_terminal():
    sessions = score_once(lambda completions: [os.getsid(0), os.getpgrp()], texts=["", ""])
    assert os.getsid(0) not in [reward.total for reward in sessions]


def test_worker_ends_with_its_parent_in_the_middle_of_a_call(tmp_path):
    """Also when the parent is killed and can clean up nothing. A script without a main guard serves here too."""
    pid_file = tmp_path / "pid"
    script = tmp_path / "script.py"
    script.write_text(HANGING_SERVICE.format(pid_file=str(pid_file)))
    tests = str(Path(__file__).parents[1])
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": tests}, stderr=subprocess.PIPE)
    with parent:
        assert parent.stderr is not None
        assert parent.stderr.readline() == b"hanging\n"
        parent.send_signal(signal.SIGKILL)
    wait_until_ended(int(pid_file.read_text()))
