"""The process that runs reward functions. The service starts it; it imports neither torch nor numpy on its own account.

What functions print goes to the service, which shows it on its standard error. A worker is not a sandbox:
functions may do to the machine whatever the user may.
"""

import asyncio
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from headrace.rewards.channel import Call, Channel, ContractBroken, Finished, Ready, Setup, SetupFailed, Started
from headrace.rewards.scoring import ContractBrokenError, GroupScorer


def main(descriptor: int) -> None:
    """Serve calls until the service closes its end of the socket with this file descriptor."""
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    # A process that a function forks must not hold the socket open after this one has died.
    os.register_at_fork(after_in_child=channel.close)
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive_requests, args=(channel, requests), daemon=True).start()
    functions = _load_functions(channel, pickle.loads(requests.get()))
    channel.send(Ready())
    with asyncio.Runner() as runner:
        scorer = GroupScorer(runner, attempt_starts=lambda: channel.send(Started()))
        while True:
            call: Call = pickle.loads(requests.get())
            channel.send(_answer(scorer, functions[call.function], call))


def _receive_requests(channel: Channel, requests: "SimpleQueue[bytes]") -> None:
    """Pass requests on; when the service is gone, end this process and what it started, even in the middle of a call."""
    try:
        while True:
            requests.put(channel.receive_pickled())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def _load_functions(channel: Channel, setup: Setup) -> list[Callable[..., Any]]:
    functions = []
    for name, pickled in setup.functions:
        try:
            functions.append(pickle.loads(pickled))
        except BaseException as error:  # forwarded, and the traceback is shown by the service
            channel.send(SetupFailed(function=name, text=f"{type(error).__name__}: {error}"))
            raise
    return functions


def _answer(scorer: GroupScorer, function: Callable[..., Any], call: Call) -> Finished | ContractBroken:
    try:
        return Finished(outcomes=tuple(scorer.score(function, call.arguments)))
    except ContractBrokenError as error:
        return ContractBroken(text=str(error))
