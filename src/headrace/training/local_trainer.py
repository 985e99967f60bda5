"""A trainer in this process: `PolicyTrainer` on a thread of its own, so that the event loop is never blocked."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from headrace.config.training import AlgorithmSection, TrainingSection
from headrace.interfaces import Weights
from headrace.training.checkpoint import load_checkpoint, save_checkpoint
from headrace.training.policy_trainer import PolicyTrainer
from headrace.types import MicroBatch, StepReport

T = TypeVar("T")


class LocalTrainer:
    """Implements `interfaces.Trainer`. Calls are computed one after the other, in the order they were made.

    Args:
        model: The policy, with float32 weights that this trainer changes in place.
        algorithm: What is learned from a batch.
        training: The optimizer.
        temperature: Softmax temperature that samples are drawn with.
        max_completion_length: Tokens.
        total_steps: Training steps of the whole run.
        threads: Context of every computation; gives a function that says how many CPU threads to use. It is asked again before each
            of the model's layers, forward and backward, as what else computes changes meanwhile.
        autocast_dtype: Arithmetic of the forward pass; None is float32.
        reference: The frozen initial policy; needed when `algorithm.beta` is above 0.

    Raises:
        ModelError: The model cannot be trained here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        algorithm: AlgorithmSection,
        training: TrainingSection,
        temperature: float,
        max_completion_length: int,
        total_steps: int,
        threads: AbstractContextManager[Callable[[], int]],
        autocast_dtype: torch.dtype | None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self._trainer = PolicyTrainer(
            model,
            algorithm=algorithm,
            training=training,
            temperature=temperature,
            max_completion_length=max_completion_length,
            total_steps=total_steps,
            autocast_dtype=autocast_dtype,
            reference=reference,
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._threads = threads
        self._number_of_threads: Callable[[], int] = torch.get_num_threads
        for layer in getattr(model.base_model, "layers", ()):
            layer.register_forward_pre_hook(self._set_threads)
            layer.register_full_backward_pre_hook(self._set_threads)

    @property
    def version(self) -> int:
        """Training steps done."""
        return self._trainer.version

    async def accumulate(self, micro_batch: MicroBatch) -> None:
        """Add a micro-batch's un-normalised gradient sum; with several minibatches a step, keep it for `step`."""
        await self._compute(lambda: self._trainer.accumulate(micro_batch))

    async def step(self) -> StepReport:
        """Divide by the batch's denominator, clip, update, and raise the version by one."""
        return await self._compute(self._trainer.step)

    def weights(self) -> Weights:
        """The current parameters and persistent buffers, by reference; a tied one once."""
        return self._trainer.weights()

    async def save(self, folder: Path) -> None:
        """Write weights, optimizer, version and random state into an existing folder; see `checkpoint.py` for its files."""
        await self._compute(lambda: save_checkpoint(self._trainer, folder))

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            CheckpointError: It is incomplete, damaged, or belongs to another model.
        """
        await self._compute(lambda: load_checkpoint(self._trainer, folder))

    async def close(self) -> None:
        """Stop the thread after the computation under way, which nothing can interrupt."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _set_threads(self, *_: object) -> None:
        torch.set_num_threads(self._number_of_threads())

    async def _compute(self, call: Callable[[], T]) -> T:
        def in_thread() -> T:
            with self._threads as self._number_of_threads:
                torch.set_num_threads(self._number_of_threads())
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)
