"""Publishing to a teacher that is a snapshot of the policy, beside the engines."""

from collections.abc import Awaitable, Callable

from headrace.interfaces import Trainer, WeightPublisher, Weights


class SnapshottingPublisher:
    """Implements `interfaces.WeightPublisher`: publishes, and gives every so many versions to whoever keeps snapshots.

    A run that goes on from a checkpoint publishes its version again; the snapshot is then the same one again, or not due.

    Args:
        publisher: Hands the weights to the engines.
        trainer: Owner of the weights.
        take_snapshot: Copies the weights of a version.
        every_steps: Version 0 and every multiple of it are given.
    """

    def __init__(
        self,
        publisher: WeightPublisher,
        trainer: Trainer,
        *,
        take_snapshot: Callable[[int, Weights], Awaitable[None]],
        every_steps: int,
    ) -> None:
        self._publisher = publisher
        self._trainer = trainer
        self._take_snapshot = take_snapshot
        self._every_steps = every_steps

    async def publish(self, version: int) -> None:
        """Returns when engines and snapshot have the weights, and the trainer may go on changing its own."""
        await self._publisher.publish(version)
        if version % self._every_steps == 0:
            await self._take_snapshot(version, self._trainer.weights())
