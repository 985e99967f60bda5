"""Against a real HTTP server on this machine (`teacher_server`)."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from teacher_server import Answer, TeacherServer, logprob, reset_after_a_503, running, trickle

from headrace.errors import ModelError, PartDiedError
from headrace.interfaces import LogprobScorer
from headrace.training.server_answers import FormName
from headrace.training.server_scorer import ServerScorer
from headrace.types import Rollout

FORMS: list[FormName] = ["prompt_logprobs", "echo"]


def rollout(*ids: int) -> Rollout:
    length = len(ids)
    return Rollout(
        completion_ids=np.array(ids, np.int32),
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        finish_reason="stop",
        text="",
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TeacherServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running(TeacherServer()) as made:
        yield made


async def no_pause(seconds: float) -> None:
    pass


def scorer(server: TeacherServer, form: FormName = "prompt_logprobs", **settings: Any) -> ServerScorer:
    return ServerScorer(
        **{
            "url": server.url,
            "model": "big",
            "form": form,
            "api_key": None,
            "max_concurrent_requests": 3,
            "timeout_seconds": 20.0,
            "max_attempts": 4,
            "pause": no_pause,
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


def checked(made: ServerScorer, token_ids: list[int], token_texts: list[str]) -> str:
    async def scenario() -> str:
        try:
            return await made.check(token_ids, token_texts)
        finally:
            await made.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_give_the_log_probabilities_of_the_completions_tokens(server: TeacherServer, form: FormName) -> None:
    found = scores(scorer(server, form), rollout(1, 3, 8), rollout(7))
    assert found == [[logprob(2, 1), logprob(1, 3), logprob(3, 8)], [logprob(2, 7)]]
    assert sorted(request["prompt"] for request in server.requests) == [[4, 2, 1, 3, 8], [4, 2, 7]]
    assert {request["model"] for request in server.requests} == {"big"}


def test_rollouts_are_asked_about_several_at_a_time_within_the_limit(server: TeacherServer) -> None:
    rollouts = [rollout(token) for token in range(12)]
    assert scores(scorer(server), *rollouts) == [[logprob(2, token)] for token in range(12)]
    assert 2 <= server.most_at_once <= 3


def test_an_echo_with_a_generated_token_behind_it_is_read_too(server: TeacherServer) -> None:
    server.change = lambda choice: choice["logprobs"]["token_logprobs"].append(-9.0)
    assert scores(scorer(server, "echo"), rollout(1)) == [[logprob(2, 1)]]


def test_the_key_is_sent(server: TeacherServer) -> None:
    scores(scorer(server, api_key="secret"), rollout(1))
    assert server.keys == ["Bearer secret"]


@pytest.mark.parametrize("trouble", [(500, {"error": "out of memory"}), (503, {}), (429, {"error": "slow down"})])
def test_the_servers_own_troubles_are_tried_again_with_growing_pauses(server: TeacherServer, trouble: Answer) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    server.first_answers = [trouble] * 3
    assert scores(scorer(server, pause=pause), rollout(1)) == [[logprob(2, 1)]]
    assert pauses == [0.5, 1.0, 2.0]


def test_attempts_are_limited_and_the_reason_is_told(server: TeacherServer) -> None:
    server.first_answers = [(500, {"error": "out of memory"})] * 9
    with pytest.raises(PartDiedError, match=r"no answer in 4 attempts: status 500 .*out of memory.*teacher\.url"):
        scores(scorer(server), rollout(1))
    assert len(server.requests) == 4


def test_a_server_that_is_not_there_is_told_with_what_to_set(server: TeacherServer) -> None:
    with pytest.raises(PartDiedError, match=r"http://127\.0\.0\.1:9/v1.*ConnectError.*see whether the server runs"):
        scores(scorer(server, url="http://127.0.0.1:9/v1"), rollout(1))


def test_a_server_that_says_nothing_is_waited_for_within_the_limit(server: TeacherServer) -> None:
    server.first_answers = [server.stall] * 2
    with pytest.raises(PartDiedError, match=r"no answer in 2 attempts: timed out after 0\.05 s"):
        scores(scorer(server, timeout_seconds=0.05, max_attempts=2), rollout(1))


def test_a_server_that_trickles_is_cut_off_at_the_limit_and_delays_nothing(server: TeacherServer) -> None:
    """The limit is that of the whole request, and nothing of it is left when the run ends."""
    threads, start = set(threading.enumerate()), time.perf_counter()
    server.first_answers = [trickle] * 2
    with pytest.raises(PartDiedError, match=r"timed out after 0\.2 s"):
        scores(scorer(server, timeout_seconds=0.2, max_attempts=2), rollout(1))
    assert 0.4 <= time.perf_counter() - start < 5
    assert all(thread.daemon for thread in set(threading.enumerate()) - threads)  # (those of the server)


def test_an_error_whose_body_does_not_come_is_tried_again(server: TeacherServer) -> None:
    server.first_answers = [server.stall_after_a_503, reset_after_a_503]
    assert scores(scorer(server, timeout_seconds=1.0), rollout(1)) == [[logprob(2, 1)]]
    assert len(server.requests) == 3


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what changes is in another thread)
            await asyncio.sleep(0.01)


def test_cancelling_ends_requests_at_once(server: TeacherServer) -> None:
    server.first_answers = [server.stall] * 3

    async def scenario() -> None:
        made = scorer(server)
        asked = asyncio.create_task(made.score((4, 2), [rollout(token) for token in range(5)]))
        await until(lambda: len(server.requests) == 3)
        start = time.perf_counter()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert time.perf_counter() - start < 1
        await until(lambda: server.hung_up == 3)
        await made.close()

    asyncio.run(scenario())
    assert len(server.requests) == 3


def test_closing_ends_requests_and_pauses_at_once(server: TeacherServer) -> None:
    server.first_answers = [(503, {}), server.stall]

    async def scenario() -> None:
        made = scorer(server, max_concurrent_requests=1, pause=lambda seconds: asyncio.sleep(60))
        waits = asyncio.create_task(made.score((4, 2), [rollout(1)]))
        other = scorer(server)
        await until(lambda: len(server.requests) == 1)
        stalled = asyncio.create_task(other.score((4, 2), [rollout(1)]))
        await until(lambda: len(server.requests) == 2)
        start = time.perf_counter()
        for each, asked in ((made, waits), (other, stalled)):
            await each.close()
            with pytest.raises(PartDiedError, match="was closed"):
                await asked
        assert time.perf_counter() - start < 1
        await until(lambda: server.hung_up == 1)

    asyncio.run(scenario())


def test_a_failure_ends_the_groups_other_requests(server: TeacherServer) -> None:
    server.first_answers = [server.stall, server.stall, (400, {"error": "too long"})]
    with pytest.raises(PartDiedError, match="status 400"):
        scores(scorer(server), rollout(1), rollout(2), rollout(3), rollout(4))
    assert len(server.requests) == 3


def test_proxies_are_those_of_the_environment(server: TeacherServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert scores(scorer(server), rollout(1)) == [[logprob(2, 1)]]
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(PartDiedError, match="ConnectError"):
        scores(scorer(server), rollout(1))


@pytest.mark.parametrize(
    ("url", "proxy", "words"), [("http://a:b/v1", "", "Invalid port: 'b'"), ("http://a/v1", "ftp://proxy", "Unknown scheme for proxy")]
)
def test_an_address_or_a_proxy_that_is_none_is_refused(
    url: str, proxy: str, words: str, server: TeacherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ModelError, match=rf"{words}.*set teacher\.url.*ALL_PROXY"):
        scorer(server, url=url)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, {"error": "who are you"}), r"status 401 .*teacher\.api_key_env"),
        ((307, {}), r"status 307 .*teacher\.url"),
        ((404, {"error": "no such model"}), r"status 404 .*teacher\.url .*teacher\.model"),
        ((400, {"error": "longer than 4096"}), r"status 400 .*longer than 4096"),
        ((200, b"<html>"), "not JSON"),
        ((200, [1]), "OpenAI-compatible"),
        ((200, {"choices": []}), "without choices"),
    ],
)
def test_other_answers_are_final(server: TeacherServer, answer: Answer, words: str) -> None:
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
    server: TeacherServer, form: FormName, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    server.change = change
    with pytest.raises(PartDiedError, match=words):
        scores(scorer(server, form), rollout(1))


def test_values_of_other_tokens_than_those_sent_are_an_error(server: TeacherServer) -> None:
    def other_token(choice: dict[str, Any]) -> None:
        choice["prompt_logprobs"][-1] = {"99": {"logprob": -1.0}}

    server.change = other_token
    with pytest.raises(PartDiedError, match="tokenizer must be the policy's"):
        scores(scorer(server), rollout(1))


def test_a_server_of_the_other_form_is_told_apart(server: TeacherServer) -> None:
    server.change = lambda choice: choice.pop("prompt_logprobs")
    with pytest.raises(PartDiedError, match=r"returned no prompt_logprobs for 3 tokens.*teacher\.form"):
        scores(scorer(server), rollout(1))


@pytest.mark.parametrize("form", FORMS)
def test_the_check_finds_the_only_model_and_compares_the_texts_of_tokens(server: TeacherServer, form: FormName) -> None:
    assert checked(scorer(server, form, model=None), [1, 2, 3], ["w1", " w2", "w3"]) == "big"
    assert (server.requests[0]["model"], server.requests[0]["prompt"]) == ("big", [1, 2, 3])
    with pytest.raises(ModelError, match=r"reads a token as ' w3' .* writes as 'cat'"):
        checked(scorer(server, form), [1, 2, 3], ["w1", "w2", "cat"])
    assert checked(scorer(server, form), [1, 2, 3], ["w1", "w2", "…"])  # A part of a character: servers differ in how they show it.


@pytest.mark.parametrize(
    ("model", "models", "words"),
    [
        ("small", ["big"], "'small' is not among them"),
        (None, ["big", "small"], "big, small"),
        (None, [], "models none"),
        (None, None, "models none"),
    ],
)
def test_the_check_names_the_servers_models(server: TeacherServer, model: str | None, models: list[str] | None, words: str) -> None:
    server.models = models
    with pytest.raises(ModelError, match=words):
        checked(scorer(server, model=model), [1, 2], ["w1", "w2"])


def test_the_check_turns_every_trouble_into_an_error_of_the_recipe(server: TeacherServer) -> None:
    with pytest.raises(ModelError, match="status 404"):
        checked(scorer(server, url=server.url + "/v2"), [1, 2], ["w1", "w2"])
    server.change = drop_last
    with pytest.raises(ModelError, match="returned 1 prompt_logprobs for 2 tokens"):
        checked(scorer(server), [1, 2], ["w1", "w2"])


def test_nothing_is_asked_after_it_was_closed(server: TeacherServer) -> None:
    made = scorer(server)
    asyncio.run(made.close())
    with pytest.raises(PartDiedError, match="closed"):
        scores(made, rollout(1))
    assert server.requests == []
