"""A real HTTP server on this machine that scores prompts as vLLM and OpenAI's completions do, and can be told to misbehave."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

Answer = tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]
"""Status and body, or what is done with the connection instead."""
LONGEST_SECONDS = 30.0
"""A server that misbehaves gives up after that, so that a test cannot hang."""


def logprob(before: int, token: int) -> float:
    """A tiny language: the log-probability of a token depends on it and the one before."""
    return -0.125 * token - 0.5 * before - 0.25


def tiny_language(ids: list[int]) -> list[float]:
    """Of each token but the first."""
    return [logprob(before, token) for before, token in pairwise(ids)]


@dataclass(kw_only=True)
class TeacherServer:
    """What it was asked, and what it answers instead of the truth."""

    url: str = ""
    logprobs: Callable[[list[int]], list[float]] = tiny_language
    text: Callable[[int], str] = lambda token: f" w{token}"
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    models: list[str] | None = field(default_factory=lambda: ["big"])
    first_answers: list[Answer] = field(default_factory=list)
    """To the first requests for completions."""
    change: Callable[[dict[str, Any]], None] = lambda choice: None
    most_at_once: int = 0
    at_once: int = 0
    hung_up: int = 0
    """Connections that the other side closed while it waited in `stall` or `stall_after_a_503`."""

    def completion(self, request: dict[str, Any]) -> Answer:
        self.requests.append(request)
        if self.first_answers:
            return self.first_answers.pop(0)
        choice = self.vllm_choice(request) if "prompt_logprobs" in request else self.openai_choice(request)
        self.change(choice)
        return 200, {"choices": [choice]}

    def vllm_choice(self, request: dict[str, Any]) -> dict[str, Any]:
        """vLLM gives the token of the prompt, and the likeliest ones up to the number asked for: none."""
        assert (request["prompt_logprobs"], request["max_tokens"]) == (0, 1)
        ids: list[int] = request["prompt"]
        known = [
            {str(token): {"logprob": value, "rank": 3, "decoded_token": self.text(token)}}
            for token, value in zip(ids[1:], self.logprobs(ids), strict=True)
        ]
        return {"index": 0, "text": "x", "prompt_logprobs": [None, *known]}

    def openai_choice(self, request: dict[str, Any]) -> dict[str, Any]:
        assert (request["echo"], request["max_tokens"]) == (True, 0)
        ids: list[int] = request["prompt"]
        logprobs = {"token_logprobs": [None, *self.logprobs(ids)], "tokens": [self.text(token) for token in ids]}
        return {"index": 0, "text": "", "logprobs": logprobs}

    def stall(self, handler: BaseHTTPRequestHandler) -> None:
        """Say nothing until the other side hangs up."""
        handler.connection.settimeout(LONGEST_SECONDS)
        with suppress(OSError):
            handler.rfile.read(1)
            self.hung_up += 1

    def stall_after_a_503(self, handler: BaseHTTPRequestHandler) -> None:
        """Promise a body that does not come."""
        send_headers(handler, 503, length=100)
        self.stall(handler)


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """Send an answer byte by byte, none of them late, that has no end."""
    send_headers(handler, 200, length=10**6)
    deadline = time.monotonic() + LONGEST_SECONDS
    with suppress(OSError):
        while time.monotonic() < deadline:
            handler.wfile.write(b" ")
            time.sleep(0.01)


def reset_after_a_503(handler: BaseHTTPRequestHandler) -> None:
    """Break the connection off in the middle of the body."""
    send_headers(handler, 503, length=100)
    handler.wfile.write(b"{")
    time.sleep(0.1)  # The other side shall see the status first.
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.rfile.close()
    handler.connection.close()


def send_headers(handler: BaseHTTPRequestHandler, status: int, *, length: int) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(length))
    handler.end_headers()


def make_handler(server: TeacherServer) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = None if server.models is None else [{"id": name} for name in server.models]
            found = self.path == "/v1/models"
            self.reply(200 if found else 404, {"data": listed} if found else {"error": "no such page"})

        def do_POST(self) -> None:
            with lock:
                server.keys.append(self.headers.get("Authorization"))
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            time.sleep(0.01)
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                answer = server.completion(request)
                server.at_once -= 1
            if callable(answer):
                answer(self)
            else:
                self.reply(*answer)

        def reply(self, status: int, body: Any) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            with suppress(OSError):  # The other side may have given up.
                send_headers(self, status, length=len(content))
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def running(server: TeacherServer) -> Iterator[TeacherServer]:
    """Serve on a port of its own while the block runs."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(server))
    server.url = f"http://127.0.0.1:{httpd.server_port}/v1"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield server
    httpd.shutdown()
    thread.join()
    httpd.server_close()
