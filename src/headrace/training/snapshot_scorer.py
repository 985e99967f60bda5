"""The policy as its own teacher: a snapshot of it that is taken again and again."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from headrace.errors import CheckpointError
from headrace.interfaces import Weights
from headrace.training.computing_thread import ComputingThread
from headrace.training.frozen_policy import FrozenPolicy
from headrace.training.local_scorer import timed_logprobs
from headrace.types import Rollout, RolloutLogprobs

SNAPSHOT_FILE = "teacher.snapshot"
"""In the safetensors format, but without an ending of weights: a checkpoint is a model folder, and some loaders take all that look so."""


class SnapshotScorer:
    """Implements `interfaces.LogprobScorer`. Groups are computed one after the other, each with one snapshot.

    Args:
        policy: A copy of the policy.
        threads: Context of every computation; see `ComputingThread`.
    """

    def __init__(self, policy: FrozenPolicy, *, threads: AbstractContextManager[Callable[[], int]]) -> None:
        self._policy = policy
        self._thread = ComputingThread("teacher", [policy.model], threads=threads)
        self._version = 0
        self._names: tuple[str, ...] = ()
        """Of the weights that change."""

    async def score(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> RolloutLogprobs:
        """The log-probabilities of all sampled tokens of a group, at the temperature that they were sampled with."""
        return await self._thread.compute(lambda: timed_logprobs(self._policy, prompt_ids, rollouts, version=self._version))

    async def take_snapshot(self, version: int, weights: Weights) -> None:
        """Copy the policy's weights, after the groups that came before. Returns when the caller may change them again."""
        await self._thread.compute(lambda: self._replace(version, weights))

    def save(self, folder: Path) -> None:
        """Write the snapshot into a checkpoint; not while another one is taken.

        Raises:
            OSError: The disk is full, or not writable.
        """
        tensors = {name: tensor.contiguous() for name, tensor in self._policy.tensors(self._names).items()}
        try:
            save_file(tensors, folder / SNAPSHOT_FILE, metadata={"version": str(self._version)})
        except SafetensorError as error:
            raise OSError(f"{folder / SNAPSHOT_FILE} cannot be written ({error})") from error

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            CheckpointError: The snapshot is missing or damaged.
        """
        await self._thread.compute(lambda: self._load(folder / SNAPSHOT_FILE))

    async def close(self) -> None:
        """Stop after the group under way."""
        await self._thread.close()

    def _replace(self, version: int, weights: Weights) -> None:
        self._policy.copy_weights(weights)
        self._version, self._names = version, tuple(weights)

    def _load(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as saved:
                version = int(saved.metadata()["version"])
                weights = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 (not a mapping)
            self._replace(version, weights)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"the teacher's snapshot {str(file)!r} cannot be read ({error}), so distillation could not go on from the same teacher; "
                "resume from another checkpoint"
            ) from error
