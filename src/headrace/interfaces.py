"""The parts and how they meet: the map of headrace on one screen.

    prompts ──▶ admission ──▶ engine ──▶ reward service ──▶ group buffer ──▶ batcher ──▶ trainer
                    ▲            ▲                                                         │
                    │            └────────────── publish version v+1 ◀─────────────────────┤
                    └────────── release the slots of the groups trained on ◀───────────────┘

Parts that stand side by side (engine, rewards, trainer, weight synchronisation, data) know each other only by these
protocols; the controller drives them. All coroutines run on one event loop; a part that computes does so
in its own thread or process, so that the loop never blocks. A part that fails raises from the call that waits on it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.types import (
    EngineStats,
    GenerationRequest,
    MicroBatch,
    Prompt,
    Rollout,
    RolloutLogprobs,
    RolloutReward,
    StepReport,
)

Weights = Mapping[str, Any]
"""Parameters by their Hugging Face names: torch tensors, opaque to everything above the trainer and the engines."""


class PromptSource(Protocol):
    """The training prompts in their order, epoch after epoch."""

    def next_prompt(self) -> Prompt | None:
        """The next prompt, or None after the last epoch's last one."""
        ...

    def get(self, *, epoch: int, row: int) -> Prompt:
        """One prompt by its name: how a resumed run finds what was in flight."""
        ...

    def position(self) -> dict[str, int | str]:
        """Where the source stands, to be given to `seek` after a restart; it includes the data set's fingerprint."""
        ...

    def seek(self, position: Mapping[str, int | str]) -> None:
        """Go on from a saved position.

        Raises:
            DataError: The position was saved with other data.
        """
        ...


class RolloutEngine(Protocol):
    """Samples completions, and takes over new weights while it does."""

    async def generate(self, request: GenerationRequest) -> Sequence[Rollout]:
        """All rollouts of one request. Waits until the last one ends; requests share the engine's batch."""
        ...

    async def load_weights(self, version: int, weights: Weights) -> None:
        """Take over new weights. Returns when the caller may change the tensors again.

        Every token sampled for a request that is made after this returns has at least this version.
        """
        ...

    def stats(self) -> EngineStats:
        """Totals so far."""
        ...

    async def close(self) -> None:
        """Stop; requests under way fail."""
        ...


class RewardService(Protocol):
    """Scores rollouts beside generation."""

    async def score(self, prompt: Prompt, rollouts: Sequence[Rollout]) -> Sequence[RolloutReward]:
        """One reward for each rollout, in order. A function that fails marks its rollouts and is counted, never raises here.

        Raises:
            RewardError: A function broke its contract (wrong number of values), so that no later group can be trusted.
        """
        ...

    async def close(self) -> None:
        """Stop the workers."""
        ...


class LogprobScorer(Protocol):
    """Another policy than the one that samples (a teacher, the initial policy), asked what it thinks of rollouts."""

    async def score(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> RolloutLogprobs:
        """The log-probabilities of all sampled tokens of a group, at the temperature that they were sampled with.

        Raises:
            PartDiedError: The scorer ended, or gives no answer that can be used.
        """
        ...

    async def close(self) -> None:
        """Stop; calls under way fail."""
        ...


class Trainer(Protocol):
    """Owns the weights that learn."""

    @property
    def version(self) -> int:
        """Training steps done."""
        ...

    async def accumulate(self, micro_batch: MicroBatch) -> None:
        """Add a micro-batch's un-normalised gradient sum; parameters stay as they are until `step`.

        A trainer that makes several updates a step may keep the micro-batch and compute in `step`.
        """
        ...

    async def step(self) -> StepReport:
        """Divide by the batch's denominator, clip, update, and raise the version by one.

        A non-finite loss or gradient skips the update and is counted; the version rises all the same.
        """
        ...

    def weights(self) -> Weights:
        """The current parameters, by reference."""
        ...

    async def save(self, folder: Path) -> None:
        """Write everything needed to go on (weights, optimizer, schedule, random state) into an existing folder."""
        ...

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            CheckpointError: It belongs to another model.
        """
        ...

    async def close(self) -> None:
        """Stop the trainer's thread."""
        ...


class WeightPublisher(Protocol):
    """Hands the trainer's weights to every engine."""

    async def publish(self, version: int) -> None:
        """Returns when every engine has them and the trainer may go on changing its own."""
        ...


class Clock(Protocol):
    """Seconds since some start; the virtual clock of the simulator implements it too."""

    def __call__(self) -> float:
        """The time now."""
        ...
