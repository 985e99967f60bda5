"""How the service and a worker talk: pickled messages, each after its length, over a pair of sockets."""

import pickle
import socket
import struct
import time
from dataclasses import dataclass

from headrace.rewards.functions import GroupArguments
from headrace.rewards.scoring import Outcome

_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """First message to a worker: each function's name and its pickled callable."""

    functions: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The worker has loaded all functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFailed:
    """The worker cannot load a function, and ends."""

    function: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Score a group by one function, given as its place in the setup."""

    function: int
    arguments: GroupArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """User code begins to run: the time limit counts from here, anew for each attempt of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcomes of a call, one for each completion."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractBroken:
    """The function did not return one value for each completion."""

    text: str


class Channel:
    """One end of a connection. One thread may send while another receives.

    All methods raise EOFError or OSError when the other end is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()

    def send(self, message: object, *, limit_seconds: float | None = None) -> None:
        """Send a message.

        Raises:
            TimeoutError: The other end did not take it within the limit.
        """
        self.send_pickled(pickle.dumps(message), limit_seconds=limit_seconds)

    def send_pickled(self, message: bytes, *, limit_seconds: float | None = None) -> None:
        """Send a message that is pickled already; as `send`."""
        self._socket.settimeout(limit_seconds)
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, *, limit_seconds: float | None = None) -> object:
        """Wait for a message.

        Raises:
            TimeoutError: No whole message came within the limit.
        """
        return pickle.loads(self.receive_pickled(limit_seconds=limit_seconds))

    def receive_pickled(self, *, limit_seconds: float | None = None) -> bytes:
        """Wait for a message and leave it pickled; as `receive`."""
        deadline = None if limit_seconds is None else time.monotonic() + limit_seconds
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size, deadline))
        return self._take(length, deadline)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _take(self, num_bytes: int, deadline: float | None) -> bytes:
        while len(self._received) < num_bytes:
            self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))
            chunk = self._socket.recv(_CHUNK_BYTES)
            if not chunk:
                raise EOFError("the other end has closed the connection")
            self._received += chunk
        taken = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return taken
