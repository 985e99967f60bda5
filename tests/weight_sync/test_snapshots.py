import asyncio
from typing import Any

import pytest
from weight_sync.test_in_process import OneWeight, Receiver, publisher

from headrace.interfaces import Weights
from headrace.weight_sync.snapshots import SnapshottingPublisher


@pytest.mark.parametrize(("every_steps", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (4, [0, 4]), (100, [0])])
def test_every_so_many_versions_are_kept_and_all_are_published(every_steps: int, expected: list[int]) -> None:
    engine, taken = Receiver(), []
    trainer: Any = OneWeight

    async def take_snapshot(version: int, weights: Weights) -> None:
        taken.append((version, float(weights["weight"])))

    async def scenario() -> None:
        made = SnapshottingPublisher(publisher(engine), trainer(), take_snapshot=take_snapshot, every_steps=every_steps)
        for version in range(7):
            await made.publish(version)

    asyncio.run(scenario())
    assert taken == [(version, 3.0) for version in expected]
    assert [version for version, _ in engine.received] == list(range(7))
