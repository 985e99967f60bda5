import os
import pickle
import sys
import time
from array import array
from pathlib import Path

import cloudpickle
import pytest

from headrace.errors import RewardError
from headrace.rewards.channel import Call
from headrace.rewards.functions import GroupArguments
from headrace.rewards.process import WorkerLostError, WorkerProcess

CALL = pickle.dumps(Call(function=0, arguments=GroupArguments(prompt="", texts=("a",), completion_ids=(array("i", [1]),), columns={})))


@pytest.fixture
def worker():
    worker = WorkerProcess()
    yield worker
    worker.kill()


def is_running(pid: int) -> bool:
    """Whether the process lives; a killed one that its parent has not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


def test_call_over_its_limit_is_killed_with_what_it_forked(worker, tmp_path):
    pid_file = tmp_path / "pid"

    def hang(completions):
        child = os.fork()
        if child:
            pid_file.write_text(str(child))
        time.sleep(60)

    worker.load([("hang", cloudpickle.dumps(hang))])
    with pytest.raises(WorkerLostError, match=r"ran longer than time_limit_seconds = 0\.5; its worker was killed") as lost:
        worker.call(CALL, time_limit_seconds=0.5)
    assert lost.value.reason == "timed_out"
    worker.kill()
    assert not worker.is_alive
    wait_until_ended(int(pid_file.read_text()))


def test_death_is_noticed_at_once_even_when_a_forked_process_lives_on(worker):
    def die(completions):
        if os.fork() == 0:
            time.sleep(60)
        sys.stdout.write("last words\n")
        os._exit(3)

    worker.load([("die", cloudpickle.dumps(die))])
    with pytest.raises(WorkerLostError, match=r"ended its worker process \(exit code 3\)") as lost:
        worker.call(CALL, time_limit_seconds=30)
    assert lost.value.reason == "died"
    assert "last words" in str(lost.value)


def test_signal_is_named(worker):
    def crash(completions):
        os.kill(os.getpid(), 11)

    worker.load([("crash", cloudpickle.dumps(crash))])
    with pytest.raises(WorkerLostError, match="SIGSEGV"):
        worker.call(CALL, time_limit_seconds=30)


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"cno_such_module\nreward\n.", "'f' cannot be loaded in a worker process: ModuleNotFoundError: .*no_such_module"),
        (b"cos\n_exit\n(I4\ntR.", r"a reward worker ended while it loaded the functions \(exit code 4\)"),
    ],
)
def test_failed_start_is_an_error_with_the_last_output(worker, pickled, message):
    with pytest.raises(RewardError, match=message) as failed:
        worker.load([("f", pickled)])
    assert ("Traceback" in str(failed.value)) == ("ModuleNotFoundError" in message)


def test_kill_may_come_twice_and_before_loading(worker):
    worker.kill()
    worker.kill()
    assert not worker.is_alive
