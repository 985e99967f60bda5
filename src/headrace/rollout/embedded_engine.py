"""The embedded rollout engine: a Hugging Face model, generating in a thread of this process, on a CPU or one GPU."""

import asyncio
import copy
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.errors import PartDiedError, StalledError, UserError
from headrace.rollout.decoder import Decoder
from headrace.rollout.running_batch import Interruption, RunningBatch, resolve
from headrace.types import EngineStats, GenerationRequest, Rollout

_Result = TypeVar("_Result")


class EmbeddedEngine:
    """Implements `interfaces.RolloutEngine`.

    Everything that computes runs in one thread of the engine's own. Calls cross to it as closures through a queue, taken
    up between two decode steps; results come back as futures. If the thread dies, every call under way or
    made later raises `PartDiedError` with the reason.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: Collection[int],
        max_concurrent_sequences: int,
        max_sequence_length: int,
        interruption: Interruption,
        threads: AbstractContextManager[Callable[[], int]],
        version: int = 0,
        stall_seconds: float,
    ) -> None:
        """Take over the model and start the thread.

        Args:
            model: The engine's own copy, in the type and on the device to generate with.
            tokenizer: Decodes completions; the engine works on a copy.
            stop_token_ids: A rollout ends with any of these.
            max_concurrent_sequences: Rollouts decoded together; further ones wait.
            max_sequence_length: Tokens of prompt and completion; longer rollouts are cut off.
            interruption: What happens to unfinished rollouts when new weights arrive: `recompute` computes their cache again
                under the new weights, `continue` keeps it, `finish` lets them end on the old weights and starts no others meanwhile.
            threads: Context of every step; gives a function that says how many CPU threads to use.
            version: Version of the model's weights.
            stall_seconds: Limit of every wait in which the engine makes no progress.

        Raises:
            ModelError: The model has layers that the engine has no cache for.
        """
        self._decoder = Decoder(model, num_places=max_concurrent_sequences)
        self._batch = RunningBatch(
            self._decoder,
            # A copy, as a fast tokenizer refuses to decode in one thread while another changes its padding.
            tokenizer=copy.deepcopy(tokenizer),
            stop_token_ids=frozenset(stop_token_ids),
            max_concurrent_sequences=max_concurrent_sequences,
            max_sequence_length=max_sequence_length,
            interruption=interruption,
            version=version,
        )
        self._max_sequence_length = max_sequence_length
        self._threads = threads
        self._stall_seconds = stall_seconds
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._progress = 0
        self._lock = threading.Lock()
        """Held while a call is handed in or the end is declared, so that no call slips in after the end."""
        self._open_futures: set[Future[Any]] = set()
        self._end: Callable[[], PartDiedError] | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-embedded-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerationRequest) -> Sequence[Rollout]:
        """All rollouts of one request, in order. Cancelling the call withdraws it.

        Raises:
            UserError: The prompt is empty, leaves no room for a completion, or has tokens that the model does not know.
            PartDiedError: The engine's thread has ended.
            StalledError: The engine made no progress for `stall_seconds`.
        """
        self._check_prompt(request.prompt_ids)
        future: Future[list[Rollout]] = Future()
        return await self._call(lambda: self._batch.add(request, future), future, "completions of the embedded engine")

    async def load_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over new weights between two decode steps; returns when they are copied.

        Raises:
            ModelError: Names or shapes are not those of the engine's model; the engine goes on with its weights.
            PartDiedError: The engine's thread has ended.
            StalledError: The engine made no progress for `stall_seconds`.
        """
        self._decoder.check_weights(weights)
        future: Future[None] = Future()

        def load() -> None:
            self._batch.take_weights(version, weights)
            resolve(future, None)

        await self._call(load, future, f"the embedded engine to take over version {version}")

    def stats(self) -> EngineStats:
        """Totals so far."""
        return self._batch.stats()

    async def close(self) -> None:
        """Stop the thread after its current step; requests under way fail with `PartDiedError`.

        Raises:
            StalledError: The step did not end within `stall_seconds`.
        """
        self._declare_end(lambda: PartDiedError("the embedded engine was closed, so it answers no requests; ask before closing it"))
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, self._stall_seconds)
        if self._thread.is_alive():
            raise StalledError(f"the embedded engine's thread did not end within {self._stall_seconds:g} s; its decode step hangs")

    async def _call(self, command: Callable[[], None], future: "Future[_Result]", awaited: str) -> _Result:
        with self._lock:
            if self._end is not None:
                raise self._end()
            self._open_futures.add(future)
            future.add_done_callback(self._open_futures.discard)
            self._inbox.put(command)
        result = asyncio.wrap_future(future)
        try:
            while not result.done():
                progress = self._progress
                await asyncio.wait({result}, timeout=self._stall_seconds)
                if not result.done() and self._progress == progress:
                    raise StalledError(f"waited {self._stall_seconds:g} s for {awaited}, in which it made no step")
            return result.result()
        finally:
            result.cancel()

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if not 0 < len(prompt_ids) < self._max_sequence_length:
            raise UserError(
                f"a prompt has {len(prompt_ids)} tokens, but must have at least 1 and leave room for a completion within "
                f"{self._max_sequence_length} tokens; leave such prompts out, or lower data.max_prompt_length"
            )
        vocabulary_size = self._decoder.vocabulary_size
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary_size:
            raise UserError(
                f"a prompt has token ids {min(prompt_ids)} to {max(prompt_ids)}, but the model knows 0 to {vocabulary_size - 1}; "
                "use the tokenizer that belongs to the model"
            )

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._obey_commands():
                    if self._batch.has_work:
                        self._compute(self._batch.step)
                    self._progress += 1
        except BaseException as error:  # noqa: BLE001 - the thread's edge: forwarded to every caller
            self._declare_end(lambda error=error: _died(error))

    def _obey_commands(self) -> bool:
        """Carry out what has been handed in, waiting for something when there is nothing else to do; False once closed."""
        wait = not self._batch.has_work
        with suppress(queue.Empty):
            while True:
                command = self._inbox.get(block=wait)
                if command is None:
                    return False
                self._compute(command)
                wait = False
        return True

    def _compute(self, work: Callable[[], None]) -> None:
        with self._threads as number:
            torch.set_num_threads(number())
            work()

    def _declare_end(self, make_error: Callable[[], PartDiedError]) -> None:
        with self._lock:
            self._end = self._end or make_error
            open_futures = list(self._open_futures)
        for future in open_futures:
            with suppress(InvalidStateError):
                future.set_exception(self._end())


def _died(cause: BaseException) -> PartDiedError:
    error = PartDiedError(f"the embedded engine's thread died of {type(cause).__name__}: {cause}; the run cannot go on without it")
    error.__cause__ = cause
    return error
