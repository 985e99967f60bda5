"""A thread of its own for what computes with a model, so that the event loop is never blocked."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

T = TypeVar("T")


class ComputingThread:
    """Runs calls one after the other, in the order they were made.

    Args:
        name: Of the thread.
        models: What the calls compute with.
        threads: Context of every call; gives a function that says how many CPU threads to use. It is asked again before each
            of the models' layers, forward and backward, as what else computes changes meanwhile.
    """

    def __init__(self, name: str, models: Iterable[PreTrainedModel], *, threads: AbstractContextManager[Callable[[], int]]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._threads = threads
        self._number_of_threads: Callable[[], int] = torch.get_num_threads
        for layer in chain.from_iterable(getattr(model.base_model, "layers", ()) for model in models):
            layer.register_forward_pre_hook(self._set_threads)
            layer.register_forward_hook(self._set_threads_before_backward)

    async def compute(self, call: Callable[[], T]) -> T:
        """The call's result; what it raises is raised here."""

        def in_thread() -> T:
            with self._threads as self._number_of_threads:
                torch.set_num_threads(self._number_of_threads())
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)

    async def close(self) -> None:
        """Stop after the computation under way, which nothing can interrupt; calls that wait are cancelled."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _set_threads(self, *_: object) -> None:
        torch.set_num_threads(self._number_of_threads())

    def _set_threads_before_backward(self, layer: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        # Not a backward hook of the layer: it warns when the inputs need no gradient, as below an adapter's first layer.
        hidden = output if isinstance(output, Tensor) else output[0]
        if hidden.requires_grad:
            hidden.register_hook(self._set_threads)
