"""Parts that take virtual time instead of computing: an engine, rewards, a trainer, prompts and publishing.

They implement the interfaces of the real ones and follow the same contracts; what they do is drawn from a seed.
"""

import asyncio
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import HeadraceError
from headrace.interfaces import RolloutEngine, Weights
from headrace.types import EngineStats, GenerationRequest, MicroBatch, Prompt, Rollout, RolloutReward, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things take, in virtual seconds. Lengths are lognormal, as those of reasoning models are roughly."""

    median_length: float = 20.0
    """Tokens of a completion."""
    length_sigma: float = 0.8
    max_length: int = 400
    seconds_per_token: float = 0.01
    reward_seconds: float = 0.05
    """Mean of an exponential distribution."""
    seconds_per_trained_token: float = 0.001
    step_seconds: float = 0.05
    publish_seconds: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong on purpose, by the number of the request."""

    engine_dies_at: int | None = None
    request_lost: int | None = None
    """This request is never answered."""
    reward_service_dies_at: int | None = None
    trainer_dies_at: int | None = None
    unscored: float = 0.0
    """Share of rollouts whose reward function fails."""


class ScriptedError(HeadraceError):
    """A part failed on purpose."""


class ScriptedPrompts:
    """`num_prompts` prompts an epoch, in a row."""

    def __init__(self, num_prompts: int, *, num_epochs: int | None) -> None:
        self._num_prompts = num_prompts
        self._num_epochs = num_epochs
        self._next = 0

    def next_prompt(self) -> Prompt | None:
        """The next prompt, or None after the last epoch."""
        epoch, row = divmod(self._next, self._num_prompts)
        if epoch == self._num_epochs:
            return None
        self._next += 1
        return self.get(epoch=epoch, row=row)

    def get(self, *, epoch: int, row: int) -> Prompt:
        """One prompt by its name."""
        return Prompt(row=row, epoch=epoch, token_ids=(row,), text=str(row))

    def position(self) -> dict[str, int | str]:
        """How many prompts were given out."""
        return {"next": self._next}

    def seek(self, position: Mapping[str, int | str]) -> None:
        """Go on from a saved position."""
        self._next = int(position["next"])


class ScriptedEngine:
    """Samples tokens at a steady rate; new weights apply to every token from then on, of old requests too.

    At most `max_concurrent_requests` are under way; the others wait in line.
    """

    def __init__(self, timing: Timing, faults: Faults, *, seed: int, max_concurrent_requests: int) -> None:
        self._timing = timing
        self._faults = faults
        self._random = random.Random(f"engine/{seed}")
        self._places = asyncio.Semaphore(max_concurrent_requests)
        self._loaded_at = [0.0]
        self._versions = [0]
        self._requests = 0
        self._generated_tokens = 0
        self._interruptions = 0

    async def generate(self, request: GenerationRequest) -> Sequence[Rollout]:
        """Wait for the longest of the rollouts."""
        number = self._requests
        self._requests += 1
        lengths = [self._draw_length() for _ in range(request.num_rollouts)]
        async with self._places:
            start = asyncio.get_running_loop().time()
            await asyncio.sleep(max(lengths) * self._timing.seconds_per_token)
        if number == self._faults.engine_dies_at:
            raise ScriptedError(f"the engine died at request {number}")
        if number == self._faults.request_lost:
            await asyncio.Event().wait()
        return [self._rollout(start, length) for length in lengths]

    async def load_weights(self, version: int, weights: Weights) -> None:
        """Sample with `version` from now on."""
        await asyncio.sleep(self._timing.publish_seconds)
        self._loaded_at.append(asyncio.get_running_loop().time())
        self._versions.append(version)

    def stats(self) -> EngineStats:
        """Totals so far."""
        return EngineStats(
            generated_tokens=self._generated_tokens,
            prefilled_tokens=0,
            busy_seconds=0.0,
            loading_seconds=0.0,
            interruptions=self._interruptions,
        )

    async def close(self) -> None:
        """Nothing to stop."""

    def _draw_length(self) -> int:
        drawn = self._timing.median_length * self._random.lognormvariate(0.0, self._timing.length_sigma)
        return max(1, min(self._timing.max_length, round(drawn)))

    def _rollout(self, start: float, length: int) -> Rollout:
        times = start + self._timing.seconds_per_token * np.arange(length)
        first = bisect_right(self._loaded_at, start) - 1
        loaded_at, versions = np.array(self._loaded_at[first:]), np.array(self._versions[first:], np.int32)
        sampled_with = versions[loaded_at.searchsorted(times, side="right") - 1]
        self._generated_tokens += length
        self._interruptions += int(sampled_with[0] != sampled_with[-1])
        return Rollout(
            completion_ids=np.zeros(length, np.int32),
            logprobs=np.zeros(length, np.float32),
            versions=sampled_with,
            finish_reason="length" if length == self._timing.max_length else "stop",
            text="",
        )


class ScriptedRewards:
    """Random rewards of 0 or 1, some of them failing."""

    def __init__(self, timing: Timing, faults: Faults, *, seed: int) -> None:
        self._timing = timing
        self._faults = faults
        self._random = random.Random(f"rewards/{seed}")
        self._calls = 0

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> Sequence[RolloutReward]:
        """Wait a while, then draw."""
        number = self._calls
        self._calls += 1
        rewards = [self._draw() for _ in rollouts]
        await asyncio.sleep(self._random.expovariate(1.0) * self._timing.reward_seconds)
        if number == self._faults.reward_service_dies_at:
            raise ScriptedError(f"the reward service died at call {number}")
        return rewards

    async def close(self) -> None:
        """Nothing to stop."""

    def _draw(self) -> RolloutReward:
        value = float(self._random.random() < 0.5)
        if self._random.random() < self._faults.unscored:
            return RolloutReward(total=None, by_function={"coin": None}, error="coin: failed on purpose")
        return RolloutReward(total=value, by_function={"coin": value})


class ScriptedTrainer:
    """Counts what it is given; takes time by the token."""

    def __init__(self, timing: Timing, faults: Faults) -> None:
        self._timing = timing
        self._faults = faults
        self._version = 0
        self._samples = 0
        self._loss_tokens = 0

    @property
    def version(self) -> int:
        """Steps done."""
        return self._version

    async def accumulate(self, micro_batch: MicroBatch) -> None:
        """Take time for a micro-batch."""
        self._samples += sum(len(row.samples) for row in micro_batch.rows)
        self._loss_tokens += sum(row.num_loss_tokens for row in micro_batch.rows)
        await asyncio.sleep(sum(row.num_tokens for row in micro_batch.rows) * self._timing.seconds_per_trained_token)

    async def step(self) -> StepReport:
        """Raise the version."""
        await asyncio.sleep(self._timing.step_seconds)
        if self._version == self._faults.trainer_dies_at:
            raise ScriptedError(f"the trainer died at version {self._version}")
        self._version += 1
        report = StepReport(
            version=self._version, skipped_updates=0, num_samples=self._samples, num_loss_tokens=self._loss_tokens, metrics={}
        )
        self._samples = self._loss_tokens = 0
        return report

    def weights(self) -> Weights:
        """None: nothing learns here."""
        return {}

    async def save(self, folder: Path) -> None:
        """Write the version."""
        (folder / "scripted_trainer.txt").write_text(str(self._version))

    async def load(self, folder: Path) -> None:
        """Read the version."""
        self._version = int((folder / "scripted_trainer.txt").read_text())

    async def close(self) -> None:
        """Nothing to stop."""


class ScriptedPublisher:
    """Hands the version number to every engine."""

    def __init__(self, engines: Sequence[RolloutEngine]) -> None:
        self._engines = engines

    async def publish(self, version: int) -> None:
        """One engine after another."""
        for engine in self._engines:
            await engine.load_weights(version, {})
