"""Publishing inside one process: engines read the trainer's tensors directly."""

from collections.abc import Sequence

from headrace.interfaces import RolloutEngine, Trainer


class InProcessPublisher:
    """Implements `interfaces.WeightPublisher` for engines that share the trainer's memory.

    Args:
        trainer: Owner of the weights.
        engines: Every engine that samples with them.
    """

    def __init__(self, trainer: Trainer, engines: Sequence[RolloutEngine]) -> None:
        self._trainer = trainer
        self._engines = tuple(engines)

    async def publish(self, version: int) -> None:
        """Waits for each engine in turn to take the weights over; afterwards the trainer may change them.

        One after the other: engines copy at the speed of the same memory, so doing it at once would not be faster.
        """
        weights = self._trainer.weights()
        for engine in self._engines:
            await engine.load_weights(version, weights)
