import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headrace.interfaces import RolloutEngine, Trainer, Weights
from headrace.types import EngineStats, GenerationRequest, Rollout
from headrace.weight_sync.in_process import InProcessPublisher


class OneWeight(Trainer):
    """A trainer whose only weight is its version."""

    version = 3

    def weights(self) -> Weights:
        return {"weight": torch.tensor(float(self.version))}


class Receiver(RolloutEngine):
    """An engine that keeps what it is given, and may fail."""

    def __init__(self, *, failing: bool = False) -> None:
        self.failing = failing
        self.received: list[tuple[int, float]] = []

    async def generate(self, request: GenerationRequest) -> Sequence[Rollout]:
        return ()

    async def load_weights(self, version: int, weights: Weights) -> None:
        await asyncio.sleep(0)
        if self.failing:
            raise RuntimeError("no room for the weights")
        self.received.append((version, float(weights["weight"])))

    def stats(self) -> EngineStats:
        return EngineStats(generated_tokens=0, prefilled_tokens=0, busy_seconds=0, loading_seconds=0, interruptions=0)

    async def close(self) -> None:
        pass


def publisher(*engines: Any) -> InProcessPublisher:
    trainer: Any = OneWeight
    return InProcessPublisher(trainer(), engines)


def test_every_engine_has_the_weights_when_publish_returns() -> None:
    engines = (Receiver(), Receiver())
    asyncio.run(publisher(*engines).publish(3))
    assert [engine.received for engine in engines] == [[(3, 3.0)], [(3, 3.0)]]


def test_an_engine_that_fails_fails_the_publication() -> None:
    with pytest.raises(RuntimeError, match="no room"):
        asyncio.run(publisher(Receiver(), Receiver(failing=True)).publish(3))
