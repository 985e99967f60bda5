"""A trainer in this process: `PolicyTrainer` on a thread of its own, so that the event loop is never blocked."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.interfaces import Weights
from headrace.training.checkpoint import load_checkpoint, save_checkpoint
from headrace.training.computing_thread import ComputingThread
from headrace.training.policy_trainer import PolicyTrainer
from headrace.types import MicroBatch, StepReport


class LocalTrainer:
    """Implements `interfaces.Trainer`. Calls are computed one after the other, in the order they were made.

    Args:
        trainer: What computes.
        threads: Context of every computation; see `ComputingThread`.
    """

    def __init__(self, trainer: PolicyTrainer, *, threads: AbstractContextManager[Callable[[], int]]) -> None:
        self._trainer = trainer
        self._thread = ComputingThread("trainer", trainer.models, threads=threads)

    @property
    def version(self) -> int:
        """Training steps done."""
        return self._trainer.version

    async def accumulate(self, micro_batch: MicroBatch) -> None:
        """Add a micro-batch's un-normalised gradient sum; with several minibatches a step, keep it for `step`."""
        await self._thread.compute(lambda: self._trainer.accumulate(micro_batch))

    async def step(self) -> StepReport:
        """Divide by the batch's denominator, clip, update, and raise the version by one."""
        return await self._thread.compute(self._trainer.step)

    def weights(self) -> Weights:
        """The current parameters and persistent buffers, by reference; a tied one once."""
        return self._trainer.weights()

    async def save(self, folder: Path) -> None:
        """Write weights, optimizer, version and random state into an existing folder; see `checkpoint.py` for its files."""
        await self._thread.compute(lambda: save_checkpoint(self._trainer, folder))

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            CheckpointError: It is incomplete, damaged, or belongs to another model.
        """
        await self._thread.compute(lambda: load_checkpoint(self._trainer, folder))

    async def close(self) -> None:
        """Stop the thread after the computation under way, which nothing can interrupt."""
        await self._thread.close()
