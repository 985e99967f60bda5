"""A model behind an OpenAI-compatible server as a teacher: it is asked for the log-probabilities of a prompt, without generating."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx2
import numpy as np

from headrace.errors import ModelError, PartDiedError
from headrace.training.server_answers import FORMS, FormName, check_texts
from headrace.types import Floats, Rollout, RolloutLogprobs

FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt; each further pause is twice as long."""
LONGEST_PAUSE_SECONDS = 20.0


class ServerScorer:
    """Implements `interfaces.LogprobScorer` with a request for each rollout, several at a time.

    Prompts are sent as token ids, so that nothing is tokenized again. Attempts that fail on the way, or by the server's own fault
    (status 429 and from 500 on), are made again after a pause; anything else is final. A scorer belongs to the event loop that it is
    first used on.

    Args:
        url: Where the API begins, for instance `http://localhost:8000/v1`.
        model: Name of the model on the server; None takes the only one, which `check` finds.
        form: `prompt_logprobs`, as vLLM has them; `echo`, as OpenAI's completions had it first.
        api_key: Sent as a bearer token; None sends none.
        max_concurrent_requests: Those beyond wait.
        timeout_seconds: Limit of one attempt, from the connection to the last byte of the answer.
        max_attempts: Of each request.
        pause: Waits the seconds between two attempts.

    Raises:
        ModelError: The URL is none, or a proxy or a certificate file of the environment cannot be used.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str | None,
        form: FormName,
        api_key: str | None,
        max_concurrent_requests: int,
        timeout_seconds: float,
        max_attempts: int,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._form = FORMS[form]
        self._timeout_seconds = timeout_seconds
        self._max_attempts = max_attempts
        self._pause = pause
        self._client = _client(self._url, api_key, max_concurrent_requests)
        self._free = asyncio.Semaphore(max_concurrent_requests)
        self._requests: set[asyncio.Task[tuple[Floats, float]]] = set()
        self._closed = False

    async def check(self, token_ids: Sequence[int], token_texts: Sequence[str]) -> str:
        """Find the model, and ask about a few tokens.

        Args:
            token_ids: Any, two at least.
            token_texts: What the policy's tokenizer makes of each one alone.

        Returns:
            The model's name on the server.

        Raises:
            ModelError: The server is not there, has no such model, gives no log-probabilities, or has another tokenizer.
        """
        try:
            self._model = await self._find_model()
            choice = await self._choice(token_ids)
            self._form.logprobs(choice, token_ids)
        except PartDiedError as error:
            raise ModelError(str(error)) from error
        check_texts(self._form.texts(choice, token_ids), token_texts)
        return self._model

    async def score(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> RolloutLogprobs:
        """The log-probabilities of all sampled tokens of a group, at temperature 1.

        Raises:
            PartDiedError: The server does not answer, or not with what was asked for; or the scorer was closed.
        """
        self._check_open()
        try:
            async with asyncio.TaskGroup() as group:
                requests = [self._start(group, prompt_ids, rollout) for rollout in rollouts]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self._check_open()
        answers = [request.result() for request in requests]
        return RolloutLogprobs(of_rollouts=tuple(logprobs for logprobs, _ in answers), seconds=max(seconds for _, seconds in answers))

    async def close(self) -> None:
        """End the requests under way, and make no others."""
        self._closed = True
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self._client.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise PartDiedError("the teacher was closed before it had scored all groups")

    def _start(self, group: asyncio.TaskGroup, prompt_ids: Sequence[int], rollout: Rollout) -> asyncio.Task[tuple[Floats, float]]:
        request = group.create_task(self._score_rollout(prompt_ids, rollout))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        return request

    async def _score_rollout(self, prompt_ids: Sequence[int], rollout: Rollout) -> tuple[Floats, float]:
        async with self._free:
            start = time.perf_counter()
            token_ids = [*prompt_ids, *rollout.completion_ids.tolist()]
            logprobs = self._form.logprobs(await self._choice(token_ids), token_ids)
            return np.array(logprobs[len(prompt_ids) :], np.float32), time.perf_counter() - start

    async def _find_model(self) -> str:
        listed = (await self._ask("models", None)).get("data")
        models = listed if isinstance(listed, list) else []
        names = [str(model["id"]) for model in models if isinstance(model, dict) and "id" in model]
        if self._model in names or (self._model is None and len(names) == 1):
            return self._model or names[0]
        wanted = "no model was chosen" if self._model is None else f"teacher.model = {self._model!r} is not among them"
        raise ModelError(f"the teacher at {self._url} has the models {', '.join(names) or 'none'}, and {wanted}; set teacher.model to one")

    async def _choice(self, token_ids: Sequence[int]) -> Mapping[str, Any]:
        body = {"model": self._model, "prompt": list(token_ids), "temperature": 1.0, **self._form.request}
        answer = await self._ask("completions", body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise PartDiedError(
                f"the teacher at {self._url} answered without choices: {answer!r:.200}; set teacher.url to a completions API"
            )
        return choices[0]

    async def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the server says to a request, attempt after attempt."""
        reason = ""
        for attempt in range(self._max_attempts):
            if attempt:
                await self._pause(min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), LONGEST_PAUSE_SECONDS))
            try:
                return self._read(path, await self._attempt(path, body))
            except _TryAgainError as error:
                reason = str(error)
        raise PartDiedError(
            f"the teacher at {self._url}/{path} gave no answer in {self._max_attempts} attempts: {reason}; see whether the server runs and "
            "teacher.url is right, or raise teacher.timeout_seconds, or lower teacher.max_concurrent_requests"
        )

    async def _attempt(self, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        """The whole answer, whatever its status."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._client.request("GET" if body is None else "POST", f"{self._url}/{path}", json=body)
        except TimeoutError as error:
            raise _TryAgainError(f"timed out after {self._timeout_seconds:g} s") from error
        except httpx2.RequestError as error:
            raise _TryAgainError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    def _read(self, path: str, response: httpx2.Response) -> dict[str, Any]:
        if not response.is_success:
            status, said = response.status_code, f"status {response.status_code} {response.text[:500]}"
            if status == 429 or status >= 500:
                raise _TryAgainError(said)
            raise PartDiedError(f"the teacher at {self._url}/{path} refused with {said}; {_remedy(status)}")
        try:
            answer = response.json()
        except ValueError as error:
            raise PartDiedError(f"the teacher at {self._url}/{path} answered with something that is not JSON; set teacher.url") from error
        if not isinstance(answer, dict):
            raise PartDiedError(f"the teacher at {self._url}/{path} answered {answer!r:.200}; set teacher.url to an OpenAI-compatible API")
        return answer


class _TryAgainError(Exception):
    """An attempt failed that another one may make good."""


def _client(url: str, api_key: str | None, max_concurrent_requests: int) -> httpx2.AsyncClient:
    """Without limits of its own: what it waits for at one socket says little of a whole attempt."""
    try:
        httpx2.URL(url)
        return httpx2.AsyncClient(
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=None,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=max_concurrent_requests),
        )
    except (httpx2.InvalidURL, ImportError, OSError, ValueError) as error:
        raise ModelError(
            f"the teacher at {url} cannot be asked: {error}; set teacher.url, or what the environment says of proxies (HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY) and certificates (SSL_CERT_FILE, SSL_CERT_DIR)"
        ) from error


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "set teacher.api_key_env to the environment variable that holds a valid key"
    if status == 404 or 300 <= status < 400:
        return "set teacher.url to where the API begins (it usually ends in /v1), and teacher.model to a model that it has"
    return "the server must take prompts as token ids, as long as a prompt with its completion, and give log-probabilities (teacher.form)"
