"""Handing a trainer's weights to an engine of the same process."""

import asyncio
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count

from embedded import embedded_engine
from interleaving import timed
from policy_trainers import AUTOCAST, policy_trainer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.training.local_trainer import LocalTrainer
from headrace.weight_sync.in_process import InProcessPublisher


@contextmanager
def publishing(model: PreTrainedModel, *, tokenizer: PreTrainedTokenizerBase, threads: int) -> Iterator[Callable[[], float]]:
    """A trainer and an engine, each with a copy of the model: a call publishes once and returns the seconds."""
    trainer = LocalTrainer(policy_trainer(copy.deepcopy(model)), threads=nullcontext(lambda: threads))
    engine = embedded_engine(copy.deepcopy(model).to(AUTOCAST), tokenizer=tokenizer, sequences=8, sequence_length=64, threads=threads)
    publisher, versions = InProcessPublisher(trainer, [engine]), count(1)
    with asyncio.Runner() as runner:
        yield lambda: timed(lambda: runner.run(publisher.publish(next(versions))))
        runner.run(engine.close())
        runner.run(trainer.close())
