"""Continuous batching: which rollouts are in which place, and what each step computes."""

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Literal, TypeVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from headrace.rollout.decoder import Decoder
from headrace.rollout.place_cache import DecodedToken, Segment
from headrace.rollout.sampling import counter_uniforms, draw_tokens
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
        self.prompt_owner: RunningRollout | None = None
        """The rollout whose place holds the prompt's cache, or will: its siblings copy it."""

    @property
    def num_cached_prompt_tokens(self) -> int:
        """All but the last, which is the input of the step that samples the first token."""
        return len(self.request.prompt_ids) - 1


class RunningRollout:
    """An unfinished rollout in its place. It is ready to decode when all its tokens but the last are cached."""

    def __init__(self, pending: PendingRequest, *, number: int, index: int, place: int, scanner: StopStringScanner | None) -> None:
        self.pending = pending
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

    @property
    def num_sampled(self) -> int:
        """Tokens of the completion so far."""
        return len(self.logprobs)

    @property
    def is_ready(self) -> bool:
        """Whether the next step may sample its next token."""
        return self.num_cached == len(self.tokens) - 1

    @property
    def lacks_prompt(self) -> bool:
        """Whether some of its prompt is not cached yet."""
        return self.num_cached < self.pending.num_cached_prompt_tokens


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
        """Fill free places, compute one token of every ready rollout and a stretch of prompt of the others."""
        start = time.perf_counter()
        self._drop_cancelled()
        while len(self._running) < self._num_places and (rollout := self._start_next(len(self._running))):
            self._running.append(rollout)
        self._copy_prompts()
        ready = [rollout for rollout in self._running if rollout.is_ready]
        segments = self._prefill_segments()
        if ready or segments:
            self._compute(ready, segments)
        self._busy_seconds += time.perf_counter() - start
        if self._next_weights and not self._running:
            (version, weights), self._next_weights = self._next_weights, None
            self.take_weights(version, weights)

    def _compute(self, ready: list[RunningRollout], segments: list[Segment]) -> None:
        decoded = [DecodedToken(place=rollout.place, position=rollout.num_cached, token=rollout.tokens[-1]) for rollout in ready]
        logits = self._decoder.compute(decoded, segments)
        for rollout in ready:
            rollout.num_cached += 1
        for segment in segments:
            self._running[segment.place].num_cached = segment.end
            self._prefilled_tokens += len(segment.tokens)
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
        rollout = RunningRollout(pending, number=next(self._numbers), index=pending.num_started, place=place, scanner=scanner)
        pending.num_started += 1
        if pending.num_started == pending.request.num_rollouts:
            self._waiting.popleft()
        if pending.prompt_owner is None:
            pending.prompt_owner = rollout
        self._copy_prompt(rollout)
        return rollout

    def _copy_prompts(self) -> None:
        for rollout in self._running:
            if rollout.lacks_prompt:
                self._copy_prompt(rollout)

    def _copy_prompt(self, rollout: RunningRollout) -> None:
        """Copy the prompt's cache from the sibling that has it, if it has it yet.

        A finished owner's place still holds the prompt: places go to the siblings that wait before any other request.
        """
        owner, length = rollout.pending.prompt_owner, rollout.pending.num_cached_prompt_tokens
        if owner is not None and owner is not rollout and owner.num_cached >= length:
            self._decoder.copy_place(source=owner.place, target=rollout.place, length=length)
            rollout.num_cached = length

    def _prefill_segments(self) -> list[Segment]:
        """Stretches of the tokens that are not cached yet, oldest rollouts first, within the limit of a step."""
        segments: list[Segment] = []
        room = _PREFILLED_TOKENS_A_STEP
        unready = [rollout for rollout in self._running if not rollout.is_ready]
        for rollout in sorted(unready, key=lambda rollout: rollout.number):
            waits_for_sibling = rollout.lacks_prompt and rollout.pending.prompt_owner is not rollout
            if room and not waits_for_sibling:
                start = rollout.num_cached
                tokens = rollout.tokens[start : min(start + room, len(rollout.tokens) - 1)]
                segments.append(Segment(place=rollout.place, start=start, tokens=tokens))
                room -= len(tokens)
        return segments

    def _change_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        self._decoder.load_weights(weights)
        self._version = version
        self._interruptions += sum(rollout.num_sampled > 0 for rollout in self._running)
        # No prompt's cache outlives its weights, except under rollouts that `continue` on it.
        for pending in [*self._waiting, *(rollout.pending for rollout in self._running)]:
            pending.prompt_owner = None
        for rollout in sorted(self._running, key=lambda rollout: rollout.number):
            if self._interruption == "recompute" or rollout.num_sampled == 0:
                rollout.num_cached = 0
                rollout.pending.prompt_owner = rollout.pending.prompt_owner or rollout

    def _drop_cancelled(self) -> None:
        self._waiting = deque(pending for pending in self._waiting if not pending.future.cancelled())
        for rollout in [rollout for rollout in self._running if rollout.pending.future.cancelled()]:
            self._release(rollout)


def resolve(future: "Future[_Result]", result: "_Result") -> None:
    """Set a future's result, unless it was cancelled meanwhile."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result)
