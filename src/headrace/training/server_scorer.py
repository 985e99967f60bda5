"""A model behind an OpenAI-compatible server as a teacher: it is asked for the log-probabilities of a prompt, without generating."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

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
    (status 429 and from 500 on), are made again after a pause; anything else is final.

    Args:
        url: Where the API begins, for instance `http://localhost:8000/v1`.
        model: Name of the model on the server; None takes the only one.
        form: `prompt_logprobs`, as vLLM has them; `echo`, as OpenAI's completions had it first.
        api_key: Sent as a bearer token; None sends none.
        max_concurrent_requests: Threads.
        timeout_seconds: Limit of each wait for the server.
        max_attempts: Of each request.
        pause: Called with the seconds between two attempts; None waits, until `close`.
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
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._form = FORMS[form]
        self._headers = {"Content-Type": "application/json"} | ({} if api_key is None else {"Authorization": f"Bearer {api_key}"})
        self._timeout_seconds = timeout_seconds
        self._max_attempts = max_attempts
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._threads = ThreadPoolExecutor(max_concurrent_requests, thread_name_prefix="teacher-request")

    def check(self, token_ids: Sequence[int], token_texts: Sequence[str]) -> None:
        """Find the model, and ask about a few tokens.

        Args:
            token_ids: Any, two at least.
            token_texts: What the policy's tokenizer makes of each one alone.

        Raises:
            ModelError: The server is not there, has no such model, gives no log-probabilities, or has another tokenizer.
        """
        try:
            self._model = self._find_model()
            choice = self._choice(token_ids)
            self._form.logprobs(choice, token_ids)
        except PartDiedError as error:
            raise ModelError(str(error)) from error
        check_texts(self._form.texts(choice, token_ids), token_texts)

    async def score(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> RolloutLogprobs:
        """The log-probabilities of all sampled tokens of a group, at temperature 1.

        Raises:
            PartDiedError: The server does not answer, or not with what was asked for.
        """
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._score_rollout, list(prompt_ids), rollout) for rollout in rollouts)
        )
        return RolloutLogprobs(of_rollouts=tuple(logprobs for logprobs, _ in answers), seconds=max(seconds for _, seconds in answers))

    async def close(self) -> None:
        """Make no further request; one under way ends by its own limit."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _score_rollout(self, prompt_ids: list[int], rollout: Rollout) -> tuple[Floats, float]:
        start = time.perf_counter()
        token_ids = prompt_ids + rollout.completion_ids.tolist()
        logprobs = self._form.logprobs(self._choice(token_ids), token_ids)
        return np.array(logprobs[len(prompt_ids) :], np.float32), time.perf_counter() - start

    def _find_model(self) -> str:
        listed = self._ask("models", None)
        names = [str(model["id"]) for model in listed.get("data", ()) if isinstance(model, dict) and "id" in model]
        if self._model in names or (self._model is None and len(names) == 1):
            return self._model or names[0]
        wanted = "no model was chosen" if self._model is None else f"teacher.model = {self._model!r} is not among them"
        raise ModelError(f"the teacher at {self._url} has the models {', '.join(names) or 'none'}, and {wanted}; set teacher.model to one")

    def _choice(self, token_ids: Sequence[int]) -> Mapping[str, Any]:
        body = {"model": self._model, "prompt": list(token_ids), "temperature": 1.0, **self._form.request}
        answer = self._ask("completions", body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise PartDiedError(
                f"the teacher at {self._url} answered without choices: {answer!r:.200}; set teacher.url to a completions API"
            )
        return choices[0]

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """What the server says to a request, attempt after attempt."""
        reason = ""
        for attempt in range(self._max_attempts):
            if attempt:
                self._pause(min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), LONGEST_PAUSE_SECONDS))
            if self._closed.is_set():
                raise PartDiedError("the teacher was closed before it had scored all groups")
            try:
                return self._attempt(path, body)
            except _TryAgainError as error:
                reason = str(error)
        raise PartDiedError(
            f"the teacher at {self._url}/{path} gave no answer in {self._max_attempts} attempts: {reason}; see whether the server runs and "
            "teacher.url is right, or raise teacher.timeout_seconds, or lower teacher.max_concurrent_requests"
        )

    def _attempt(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/{path}", data=data, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            said = error.read(500).decode("utf-8", "replace")
            if error.code == 429 or error.code >= 500:
                raise _TryAgainError(f"status {error.code} {said}") from error
            raise PartDiedError(
                f"the teacher at {self._url}/{path} refused with status {error.code} {said}; {_remedy(error.code)}"
            ) from error
        except (OSError, HTTPException) as error:
            raise _TryAgainError(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise PartDiedError(f"the teacher at {self._url}/{path} answered with something that is not JSON; set teacher.url") from error
        if not isinstance(answer, dict):
            raise PartDiedError(f"the teacher at {self._url}/{path} answered {answer!r:.200}; set teacher.url to an OpenAI-compatible API")
        return answer


class _TryAgainError(Exception):
    """An attempt failed that another one may make good."""


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "set teacher.api_key_env to the environment variable that holds a valid key"
    if status == 404:
        return "set teacher.url to where the API begins (it usually ends in /v1), and teacher.model to a model that it has"
    return "the server must take prompts as token ids, as long as a prompt with its completion, and give log-probabilities (teacher.form)"
