"""Continuous batching: which rollouts are in which place, and what each step computes."""

import contextlib
import heapq
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Literal, TypeVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from headrace.rollout.decoder import Decoder
from headrace.rollout.sampling import counter_uniforms, draw_tokens
from headrace.rollout.step import DecodedToken, PromptPlace, Segment
from headrace.rollout.stop_conditions import StopStringScanner, cut_at_stop_string, decode
from headrace.types import EngineStats, FinishReason, GenerationRequest, Rollout

_Result = TypeVar("_Result")

Interruption = Literal["recompute", "continue", "finish"]

_PREFILLED_TOKENS_A_STEP = 256
"""Limit that keeps long prompts from holding up the rollouts being decoded."""


class PendingRequest:
    """A request from its arrival to its last rollout."""

    def __init__(self, request: GenerationRequest, future: "Future[list[Rollout]]") -> None:
        self.request = request
        self.future = future
        self.num_started = 0
        self.finished: dict[int, Rollout] = {}
        self.prompt: CachedPrompt | None = None
        """What the next rollout will read; None when the prompt has to be cached first."""


class CachedPrompt:
    """The cache of a prompt under one version of the weights, or the part of it that is there yet."""

    def __init__(self, prompt_ids: Sequence[int], slot: int) -> None:
        self.place = PromptPlace(slot=slot, length=len(prompt_ids) - 1)
        self.num_cached = 0
        self.num_readers = 0
        """Running rollouts behind it."""

    @property
    def is_cached(self) -> bool:
        """Whether all of it is there."""
        return self.num_cached == self.place.length


class RunningRollout:
    """An unfinished rollout in its place. It is ready to decode when all its tokens but the last are cached."""

    def __init__(
        self, pending: PendingRequest, prompt: CachedPrompt, *, number: int, index: int, place: int, scanner: StopStringScanner | None
    ) -> None:
        self.pending = pending
        self.prompt = prompt
        self.number = number
        """Order of the start, over all requests."""
        self.index = index
        """Which of its request's rollouts it is."""
        self.place = place
        self.scanner = scanner
        self.tokens = list(pending.request.prompt_ids)
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.num_cached = 0
        """Tokens cached behind the prompt."""

    @property
    def num_sampled(self) -> int:
        """Tokens of the completion so far."""
        return len(self.logprobs)

    @property
    def num_uncached(self) -> int:
        """Tokens to cache behind the prompt, before the last one is decoded."""
        return len(self.tokens) - 1 - self.prompt.place.length - self.num_cached

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be sampled."""
        return self.prompt.is_cached and self.num_uncached == 0


class RunningBatch:
    """The places, the requests that wait for one, and the weights. All calls come from one thread."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: frozenset[int],
        max_concurrent_sequences: int,
        max_sequence_length: int,
        interruption: Interruption,
        version: int,
    ) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._num_places = max_concurrent_sequences
        self._max_sequence_length = max_sequence_length
        self._interruption: Interruption = interruption
        self._version = version
        self._waiting: deque[PendingRequest] = deque()
        self._running: list[RunningRollout] = []
        """By place: rollout i is in place i."""
        self._numbers = itertools.count()
        self._free_slots: list[int] = []
        """A heap of the slots that no prompt is in. The lowest is taken, as attention covers all slots up to the last one used."""
        self._num_slots = 0
        self._next_weights: tuple[int, Mapping[str, torch.Tensor]] | None = None
        self._generated_tokens = self._prefilled_tokens = self._interruptions = 0
        self._busy_seconds = self._loading_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    def stats(self) -> EngineStats:
        """Totals so far; may be called from any thread."""
        return EngineStats(
            generated_tokens=self._generated_tokens,
            prefilled_tokens=self._prefilled_tokens,
            busy_seconds=self._busy_seconds,
            loading_seconds=self._loading_seconds,
            interruptions=self._interruptions,
        )

    def add(self, request: GenerationRequest, future: "Future[list[Rollout]]") -> None:
        """Queue a request; the future gets its rollouts. A cancelled future withdraws it."""
        self._waiting.append(PendingRequest(request, future))

    def take_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over new weights, or under `finish` keep a copy until the running rollouts have ended (the newest copy wins)."""
        start = time.perf_counter()
        if self._interruption == "finish" and self._running:
            self._next_weights = (version, self._decoder.copy_of(weights))
        else:
            self._change_weights(version, weights)
        self._loading_seconds += time.perf_counter() - start

    def step(self) -> None:
        """Fill free places, compute one token of every ready rollout and a stretch of what the others lack in the cache."""
        start = time.perf_counter()
        self._drop_cancelled()
        while len(self._running) < self._num_places and (rollout := self._start_next(len(self._running))):
            self._running.append(rollout)
        segments = self._cache_segments()
        ready = [rollout for rollout in self._running if rollout.is_ready]
        if ready or segments:
            self._compute(ready, segments)
        self._busy_seconds += time.perf_counter() - start
        if self._next_weights and not self._running:
            (version, weights), self._next_weights = self._next_weights, None
            self.take_weights(version, weights)

    def _compute(self, ready: list[RunningRollout], segments: list[Segment]) -> None:
        decoded = [
            DecodedToken(place=rollout.place, prompt=rollout.prompt.place, position=len(rollout.tokens) - 1, token=rollout.tokens[-1])
            for rollout in ready
        ]
        logits = self._decoder.compute(decoded, segments)
        for rollout in ready:
            rollout.num_cached += 1
        if ready:
            self._sample(ready, logits)

    def _sample(self, ready: list[RunningRollout], logits: torch.Tensor) -> None:
        requests = [rollout.pending.request for rollout in ready]
        uniforms = counter_uniforms(
            [request.seed for request in requests],
            [rollout.index for rollout in ready],
            [rollout.num_sampled for rollout in ready],
        )
        tokens, logprobs = draw_tokens(logits, [request.sampling for request in requests], uniforms)
        self._generated_tokens += len(ready)
        for rollout, token, logprob in zip(ready, tokens, logprobs, strict=True):
            rollout.tokens.append(token)
            rollout.logprobs.append(logprob)
            rollout.versions.append(self._version)
            if reason := self._finish_reason(rollout, token):
                self._finish(rollout, reason)
                self._release(rollout)

    def _finish_reason(self, rollout: RunningRollout, token: int) -> FinishReason | None:
        if token in self._stop_token_ids or (rollout.scanner and rollout.scanner.completes_stop(token)):
            return "stop"
        limit = rollout.pending.request.sampling.max_completion_length
        return "length" if rollout.num_sampled >= limit or len(rollout.tokens) >= self._max_sequence_length else None

    def _finish(self, rollout: RunningRollout, reason: FinishReason) -> None:
        pending = rollout.pending
        completion = rollout.tokens[len(pending.request.prompt_ids) :]
        text = decode(self._tokenizer, completion[:-1] if completion[-1] in self._stop_token_ids else completion)
        pending.finished[rollout.index] = Rollout(
            completion_ids=np.array(completion, dtype=np.int32),
            logprobs=np.array(rollout.logprobs, dtype=np.float32),
            versions=np.array(rollout.versions, dtype=np.int32),
            finish_reason=reason,
            text=cut_at_stop_string(text, pending.request.sampling.stop_strings),
        )
        if len(pending.finished) == pending.request.num_rollouts:
            resolve(pending.future, [pending.finished[index] for index in range(pending.request.num_rollouts)])

    def _release(self, rollout: RunningRollout) -> None:
        """Give the place to the next rollout that waits; without one, move the last place here, so that no gap is computed."""
        successor = self._start_next(rollout.place)
        self._leave_prompt(rollout)
        if successor:
            self._running[rollout.place] = successor
            return
        last = self._running.pop()
        if last is not rollout:
            self._decoder.copy_place(source=last.place, target=rollout.place, length=last.num_cached)
            last.place = rollout.place
            self._running[last.place] = last

    def _start_next(self, place: int) -> RunningRollout | None:
        """The next rollout in the order of arrival. None when none waits, or when weights wait for the running ones to end."""
        if self._next_weights or not self._waiting:
            return None
        pending = self._waiting[0]
        stop_strings = pending.request.sampling.stop_strings
        scanner = StopStringScanner(self._tokenizer, stop_strings) if stop_strings else None
        rollout = RunningRollout(
            pending, self._prompt_of(pending), number=next(self._numbers), index=pending.num_started, place=place, scanner=scanner
        )
        pending.num_started += 1
        if pending.num_started == pending.request.num_rollouts:
            self._waiting.popleft()
        return rollout

    def _prompt_of(self, pending: PendingRequest) -> CachedPrompt:
        """The cached prompt for one more reader, in a free slot when there is none yet."""
        if pending.prompt is None:
            if not self._free_slots:
                self._free_slots.append(self._num_slots)
                self._num_slots += 1
            pending.prompt = CachedPrompt(pending.request.prompt_ids, heapq.heappop(self._free_slots))
        pending.prompt.num_readers += 1
        return pending.prompt

    def _leave_prompt(self, rollout: RunningRollout) -> None:
        prompt, pending = rollout.prompt, rollout.pending
        prompt.num_readers -= 1
        if prompt.num_readers == 0:
            heapq.heappush(self._free_slots, prompt.place.slot)
            if pending.prompt is prompt:
                pending.prompt = None

    def _cache_segments(self) -> list[Segment]:
        """Stretches of the tokens that are not cached yet, oldest rollouts first, within the limit of a step."""
        segments: list[Segment] = []
        room = _PREFILLED_TOKENS_A_STEP
        for rollout in sorted(self._running, key=lambda rollout: rollout.number):
            prompt = rollout.prompt
            if room and not prompt.is_cached:
                tokens = rollout.tokens[prompt.num_cached : min(prompt.num_cached + room, prompt.place.length)]
                segments.append(Segment(prompt=prompt.place, place=None, start=prompt.num_cached, tokens=tokens))
                prompt.num_cached += len(tokens)
                room -= len(tokens)
            if room and prompt.is_cached and rollout.num_uncached:
                start = prompt.place.length + rollout.num_cached
                tokens = rollout.tokens[start : min(start + room, len(rollout.tokens) - 1)]
                segments.append(Segment(prompt=prompt.place, place=rollout.place, start=start, tokens=tokens))
                rollout.num_cached += len(tokens)
                room -= len(tokens)
        self._prefilled_tokens += _PREFILLED_TOKENS_A_STEP - room
        return segments

    def _change_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        self._decoder.load_weights(weights)
        self._version = version
        self._interruptions += sum(rollout.num_sampled > 0 for rollout in self._running)
        # No cache outlives its weights, except under rollouts that `continue` on it.
        for pending in [*self._waiting, *(rollout.pending for rollout in self._running)]:
            pending.prompt = None
        outdated = [rollout for rollout in self._running if self._interruption == "recompute" or rollout.num_sampled == 0]
        for rollout in outdated:
            self._leave_prompt(rollout)
        for rollout in sorted(outdated, key=lambda rollout: rollout.number):
            rollout.prompt, rollout.num_cached = self._prompt_of(rollout.pending), 0

    def _drop_cancelled(self) -> None:
        self._waiting = deque(pending for pending in self._waiting if not pending.future.cancelled())
        for rollout in [rollout for rollout in self._running if rollout.pending.future.cancelled()]:
            self._release(rollout)


def resolve(future: "Future[_Result]", result: "_Result") -> None:
    """Set a future's result, unless it was cancelled meanwhile."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result)
