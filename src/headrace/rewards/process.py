"""The service's side of one worker: start it, call it under a limit, end it with everything it started."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from headrace.errors import PartDiedError, RewardError, StalledError
from headrace.rewards.channel import Channel, ContractBroken, Finished, Setup, SetupFailed, Started
from headrace.rewards.scoring import FailureReason

START_LIMIT_SECONDS = 120.0
"""How long a worker may take to import the functions, and an idle one to take a call."""
_KILL_LIMIT_SECONDS = 10.0
_OUTPUT_TAIL_LINES = 20

# The parent's sys.path is in force before the first import: with `-m`, the current folder would come before it.
_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from headrace.rewards.worker import main; main(int(sys.argv[1]))"


class WorkerLostError(Exception):
    """A call did not end by itself: the worker ran too long or died. The message is to be put after the function's name."""

    def __init__(self, reason: FailureReason, text: str) -> None:
        super().__init__(text)
        self.reason: FailureReason = reason


class WorkerProcess:
    """One worker, in a session of its own: a Ctrl-C in the terminal does not reach it, and `kill` reaches all of it.

    The methods block; `kill` may be called from another thread and ends a `call` under way.

    Raises:
        PartDiedError: The system gives no further process.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-u", "-c", _BOOT, str(theirs.fileno()), *map(str, sys.path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise PartDiedError(f"no process could be started for a reward worker: {error}") from error
        self._channel = Channel(ours)
        self._output_tail: deque[str] = deque(maxlen=_OUTPUT_TAIL_LINES)
        self._output_thread = threading.Thread(target=self._show_output, name="reward-worker-output", daemon=True)
        self._output_thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def load(self, functions: Sequence[tuple[str, bytes]]) -> None:
        """Give the worker its functions (name and pickled callable) and wait until it has loaded them.

        Raises:
            RewardError: It cannot load one, or ends, or takes longer than `START_LIMIT_SECONDS`.
        """
        try:
            self._channel.send(Setup(functions=tuple(functions)), limit_seconds=START_LIMIT_SECONDS)
            reply = self._channel.receive(limit_seconds=START_LIMIT_SECONDS)
        except TimeoutError:
            raise RewardError(f"a reward worker did not load the functions within {START_LIMIT_SECONDS:g} s{self._last_output()}") from None
        except (EOFError, OSError):
            raise RewardError(f"a reward worker ended while it loaded the functions ({self._ending()}){self._last_output()}") from None
        if isinstance(reply, SetupFailed):
            self._ending()
            raise RewardError(f"reward function {reply.function!r} cannot be loaded in a worker process: {reply.text}{self._last_output()}")

    def call(self, pickled: bytes, *, time_limit_seconds: float) -> Finished | ContractBroken:
        """Send a pickled `Call` and wait for its end; the limit counts from the start of user code.

        Raises:
            WorkerLostError: It ran too long, or the worker died; the worker must be killed.
        """
        started = False
        try:
            self._channel.send_pickled(pickled, limit_seconds=START_LIMIT_SECONDS)
            reply = self._channel.receive(limit_seconds=START_LIMIT_SECONDS)
            while isinstance(reply, Started):
                started = True
                reply = self._channel.receive(limit_seconds=time_limit_seconds)
        except TimeoutError:
            limit = f"time_limit_seconds = {time_limit_seconds:g}" if started else f"{START_LIMIT_SECONDS:g} s without starting"
            raise WorkerLostError("timed_out", f"ran longer than {limit}; its worker was killed") from None
        except (EOFError, OSError):
            raise WorkerLostError("died", f"ended its worker process ({self._ending()}){self._last_output()}") from None
        assert isinstance(reply, Finished | ContractBroken), reply
        return reply

    def kill(self) -> None:
        """End the worker and every process of its session's group. Calling it again does nothing.

        Raises:
            StalledError: It does not end.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise StalledError(
                f"waited {_KILL_LIMIT_SECONDS:g} s for the killed reward worker {self._process.pid} to end; it is stuck in the kernel"
            ) from None
        self._output_thread.join(1.0)
        self._channel.close()

    def _ending(self) -> str:
        """How the process ended, for a message; waits until it and its output have."""
        try:
            code = self._process.wait(_KILL_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        self._output_thread.join(1.0)
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _last_output(self) -> str:
        return "; its last output:\n" + "".join(self._output_tail) if self._output_tail else ""

    def _show_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(4096):
                self._output_tail.append(line)
                with suppress(OSError, ValueError):  # our own standard error is closed; the worker must not block on a full pipe
                    sys.stderr.write(line)
