"""Against a real HTTP server on this machine that has a tiny language: the log-probability of a token depends on it and the one before."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headrace.errors import ModelError, PartDiedError
from headrace.interfaces import LogprobScorer
from headrace.training.server_answers import FormName
from headrace.training.server_scorer import ServerScorer
from headrace.types import Rollout

FORMS: list[FormName] = ["prompt_logprobs", "echo"]
Answer = tuple[int, Any]
"""Status and body."""


def logprob(before: int, token: int) -> float:
    return -0.125 * token - 0.5 * before - 0.25


def rollout(*ids: int) -> Rollout:
    length = len(ids)
    return Rollout(
        completion_ids=np.array(ids, np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        finish_reason="stop",
        text="",
    )


@dataclass(kw_only=True)
class Server:
    """What it was asked, and what it answers instead of the truth."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["big"])
    first_answers: list[Answer] = field(default_factory=list)
    """To the first requests for completions."""
    change: Callable[[dict[str, Any]], None] = lambda choice: None
    most_at_once: int = 0
    at_once: int = 0

    def completion(self, request: dict[str, Any]) -> Answer:
        self.requests.append(request)
        if self.first_answers:
            return self.first_answers.pop(0)
        choice = vllm_choice(request) if "prompt_logprobs" in request else openai_choice(request)
        self.change(choice)
        return 200, {"choices": [choice]}


def values(ids: list[int]) -> list[float | None]:
    return [None, *(logprob(before, token) for before, token in pairwise(ids))]


def vllm_choice(request: dict[str, Any]) -> dict[str, Any]:
    """vLLM gives the token of the prompt, and the likeliest ones up to the number asked for: none."""
    assert (request["prompt_logprobs"], request["max_tokens"]) == (0, 1)
    ids: list[int] = request["prompt"]
    entries = [
        None if value is None else {str(token): {"logprob": value, "rank": 3, "decoded_token": f" w{token}"}}
        for token, value in zip(ids, values(ids), strict=True)
    ]
    return {"index": 0, "text": "x", "prompt_logprobs": entries}


def openai_choice(request: dict[str, Any]) -> dict[str, Any]:
    assert (request["echo"], request["max_tokens"]) == (True, 0)
    ids: list[int] = request["prompt"]
    return {"index": 0, "text": "", "logprobs": {"token_logprobs": values(ids), "tokens": [f" w{token}" for token in ids]}}


def make_handler(server: Server) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            self.reply(200 if found else 404, {"data": [{"id": name} for name in server.models]} if found else {"error": "no such page"})

        def do_POST(self) -> None:
            with lock:
                server.keys.append(self.headers.get("Authorization"))
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            time.sleep(0.01)
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                status, body = server.completion(request)
                server.at_once -= 1
            self.reply(status, body)

        def reply(self, status: int, body: Any) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Server()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(made))
    made.url = f"http://127.0.0.1:{httpd.server_port}/v1"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield made
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def scorer(server: Server, form: FormName = "prompt_logprobs", **settings: Any) -> ServerScorer:
    return ServerScorer(
        **{
            "url": server.url,
            "model": "big",
            "form": form,
            "api_key": None,
            "max_concurrent_requests": 3,
            "timeout_seconds": 20.0,
            "max_attempts": 4,
            "pause": lambda seconds: None,
        }
        | settings
    )


def scores(made: LogprobScorer, *rollouts: Rollout, prompt: tuple[int, ...] = (4, 2)) -> list[list[float]]:
    async def scenario() -> list[list[float]]:
        try:
            found = await made.score(prompt, rollouts)
            assert found.seconds > 0
            return [each.tolist() for each in found.of_rollouts]
        finally:
            await made.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_give_the_log_probabilities_of_the_completions_tokens(server: Server, form: FormName) -> None:
    found = scores(scorer(server, form), rollout(1, 3, 8), rollout(7))
    assert found == [[logprob(2, 1), logprob(1, 3), logprob(3, 8)], [logprob(2, 7)]]
    assert sorted(request["prompt"] for request in server.requests) == [[4, 2, 1, 3, 8], [4, 2, 7]]
    assert {request["model"] for request in server.requests} == {"big"}


def test_rollouts_are_asked_about_several_at_a_time_within_the_limit(server: Server) -> None:
    rollouts = [rollout(token) for token in range(12)]
    assert scores(scorer(server), *rollouts) == [[logprob(2, token)] for token in range(12)]
    assert 2 <= server.most_at_once <= 3


def test_an_echo_with_a_generated_token_behind_it_is_read_too(server: Server) -> None:
    server.change = lambda choice: choice["logprobs"]["token_logprobs"].append(-9.0)
    assert scores(scorer(server, "echo"), rollout(1)) == [[logprob(2, 1)]]


def test_the_key_is_sent(server: Server) -> None:
    scores(scorer(server, api_key="secret"), rollout(1))
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("trouble", [(500, {"error": "out of memory"}), (503, {}), (429, {"error": "slow down"})])
def test_the_servers_own_troubles_are_tried_again_with_growing_pauses(server: Server, trouble: Answer) -> None:
    pauses: list[float] = []
    server.first_answers = [trouble] * 3
    assert scores(scorer(server, pause=pauses.append), rollout(1)) == [[logprob(2, 1)]]
    assert pauses == [0.5, 1.0, 2.0]


def test_attempts_are_limited_and_the_reason_is_told(server: Server) -> None:
    server.first_answers = [(500, {"error": "out of memory"})] * 9
    with pytest.raises(PartDiedError, match=r"no answer in 4 attempts: status 500 .*out of memory.*teacher\.url"):
        scores(scorer(server), rollout(1))
    assert len(server.requests) == 4


def test_a_server_that_is_not_there_is_told_with_what_to_set(server: Server) -> None:
    with pytest.raises(PartDiedError, match=r"http://127\.0\.0\.1:9/v1.*URLError.*see whether the server runs"):
        scores(scorer(server, url="http://127.0.0.1:9/v1"), rollout(1))


def test_a_server_that_says_nothing_is_waited_for_within_the_limit(server: Server) -> None:
    server.change = lambda choice: time.sleep(0.3)
    with pytest.raises(PartDiedError, match="timed out"):
        scores(scorer(server, timeout_seconds=0.05, max_attempts=2), rollout(1))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, {"error": "who are you"}), r"status 401 .*teacher\.api_key_env"),
        ((404, {"error": "no such model"}), r"status 404 .*teacher\.url .*teacher\.model"),
        ((400, {"error": "longer than 4096"}), r"status 400 .*longer than 4096"),
        ((200, b"<html>"), "not JSON"),
        ((200, [1]), "OpenAI-compatible"),
        ((200, {"choices": []}), "without choices"),
    ],
)
def test_other_answers_are_final(server: Server, answer: Answer, words: str) -> None:
    server.first_answers = [answer]
    with pytest.raises(PartDiedError, match=words):
        scores(scorer(server), rollout(1))
    assert len(server.requests) == 1


def drop_last(choice: dict[str, Any]) -> None:
    entries = choice["prompt_logprobs"] if "prompt_logprobs" in choice else choice["logprobs"]["token_logprobs"]
    entries.pop()


def spoil_last(choice: dict[str, Any]) -> None:
    entries = choice["prompt_logprobs"] if "prompt_logprobs" in choice else choice["logprobs"]["token_logprobs"]
    entries[-1] = None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("change", "words"), [(drop_last, "returned 2 .*for 3 tokens"), (spoil_last, "no number for token 2 of 3")])
def test_a_wrong_number_of_values_or_a_missing_one_is_an_error(
    server: Server, form: FormName, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    server.change = change
    with pytest.raises(PartDiedError, match=words):
        scores(scorer(server, form), rollout(1))


def test_values_of_other_tokens_than_those_sent_are_an_error(server: Server) -> None:
    def other_token(choice: dict[str, Any]) -> None:
        choice["prompt_logprobs"][-1] = {"99": {"logprob": -1.0}}

    server.change = other_token
    with pytest.raises(PartDiedError, match="tokenizer must be the policy's"):
        scores(scorer(server), rollout(1))


def test_a_server_of_the_other_form_is_told_apart(server: Server) -> None:
    server.change = lambda choice: choice.pop("prompt_logprobs")
    with pytest.raises(PartDiedError, match=r"returned no prompt_logprobs for 3 tokens.*teacher\.form"):
        scores(scorer(server), rollout(1))


@pytest.mark.parametrize("form", FORMS)
def test_the_check_finds_the_only_model_and_compares_the_texts_of_tokens(server: Server, form: FormName) -> None:
    made = scorer(server, form, model=None)
    made.check([1, 2, 3], ["w1", " w2", "w3"])
    assert server.requests[0]["prompt"] == [1, 2, 3]
    with pytest.raises(ModelError, match=r"reads a token as ' w3' .* writes as 'cat'"):
        made.check([1, 2, 3], ["w1", "w2", "cat"])
    made.check([1, 2, 3], ["w1", "w2", "…"])  # A part of a character: servers differ in how they show it.
    assert scores(made, rollout(1)) == [[logprob(2, 1)]]
    assert server.requests[-1]["model"] == "big"


@pytest.mark.parametrize(
    ("model", "models", "words"),
    [("small", ["big"], "'small' is not among them"), (None, ["big", "small"], "big, small"), (None, [], "models none")],
)
def test_the_check_names_the_servers_models(server: Server, model: str | None, models: list[str], words: str) -> None:
    server.models = models
    with pytest.raises(ModelError, match=words):
        scorer(server, model=model).check([1, 2], ["w1", "w2"])


def test_the_check_turns_every_trouble_into_an_error_of_the_recipe(server: Server) -> None:
    with pytest.raises(ModelError, match="status 404"):
        scorer(server, url=server.url + "/v2").check([1, 2], ["w1", "w2"])
    server.change = drop_last
    with pytest.raises(ModelError, match="returned 1 prompt_logprobs for 2 tokens"):
        scorer(server).check([1, 2], ["w1", "w2"])


def test_nothing_is_asked_after_it_was_closed(server: Server) -> None:
    made = scorer(server)
    asyncio.run(made.close())
    with pytest.raises(PartDiedError, match="closed"):
        made._ask("models", None)
