"""A peer in a process of its own, often of another Python environment: it answers lines on stdin with JSON lines on stdout."""

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from headrace import WAITING_THREADS
from headrace.errors import PartDiedError, StalledError


def peer_environment() -> dict[str, str]:
    """This process's variables but for those that headrace sets for itself: a peer shall wait the way it does without headrace."""
    return {name: value for name, value in os.environ.items() if name not in WAITING_THREADS}


class PeerProcess:
    """Starts a worker and waits until it says that it is ready.

    Args:
        name: What messages call it.
        command: Program and arguments. The worker prints one JSON line when it is ready, and one for each line that it reads.
        start_seconds: Limit for loading (and compiling).
        answer_seconds: Limit for each answer.
        environment: Variables beside `peer_environment`.

    Raises:
        PartDiedError: It ended; the message has the end of its log.
        StalledError: It took longer than a limit.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        start_seconds: float,
        answer_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._answer_seconds = answer_seconds
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**peer_environment(), **(environment or {})},
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"reader of {name}", daemon=True)
        self._reader.start()
        self.facts = self._answer(start_seconds)
        """What it said when it was ready."""

    def ask(self, question: object) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        assert self._process.stdin is not None
        print(question, file=self._process.stdin, flush=True)
        return self._answer(self._answer_seconds)

    def close(self) -> None:
        """End the process: it stops at the end of its input, or is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=30)
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _answer(self, limit_seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit_seconds)
        except queue.Empty:
            self._process.kill()
            raise StalledError(f"waited {limit_seconds:g} s for an answer of {self._name}; {self._end_of_log()}") from None
        if line is None:
            raise PartDiedError(f"{self._name} ended with exit code {self._process.wait()}; {self._end_of_log()}")
        return json.loads(line)

    def _end_of_log(self) -> str:
        self._log.seek(0)
        return "its log ends with:\n" + self._log.read()[-4000:]
