"""What a run needs to go on after a kill, and going on from it.

A checkpoint is taken between two steps. The groups that are live then (in flight or ready) are saved by name and generated
again: nothing that was trained on is repeated, nothing that was admitted is forgotten.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.buffer.group_buffer import GroupBuffer
from headrace.controller.checkpoints import CheckpointFolders, read_state
from headrace.errors import CheckpointError
from headrace.interfaces import Clock, PromptSource, Trainer
from headrace.telemetry.events import CheckpointSaved, Events
from headrace.types import AdmittedGroup, Ledger

FORMAT = 1


class RunCheckpoints:
    """Saves a run's whole state when due."""

    def __init__(
        self,
        folders: CheckpointFolders,
        *,
        every_steps: int,
        trainer: Trainer,
        buffer: GroupBuffer,
        prompts: PromptSource,
        events: Events,
        clock: Clock,
        extra_state: Callable[[], Mapping[str, Any]],
        save_beside: Callable[[Path], object],
        saved_version: int | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            folders: Where checkpoints go.
            every_steps: How often `save_if_due` saves.
            trainer: Saves itself.
            buffer: Its books and live groups are saved.
            prompts: Their position is saved.
            events: Told of each checkpoint.
            clock: The run's.
            extra_state: More JSON values to save with the state (telemetry's totals).
            save_beside: Writes more files into the folder (the tokenizer, the teacher's snapshot); called on another thread.
            saved_version: The version resumed from, which need not be saved again.
        """
        self._folders = folders
        self._every_steps = every_steps
        self._trainer = trainer
        self._buffer = buffer
        self._prompts = prompts
        self._events = events
        self._clock = clock
        self._extra_state = extra_state
        self._save_beside = save_beside
        self._saved_version = saved_version

    async def save_if_due(self, version: int) -> None:
        """Save every `every_steps` steps."""
        if version % self._every_steps == 0:
            await self.save(version)

    async def save(self, version: int) -> None:
        """Save this version, unless it is saved already."""
        if version == self._saved_version:
            return
        start = self._clock()
        # The state is taken before the first wait: what other tasks do while files are written belongs after it.
        state = {
            "format": FORMAT,
            "version": version,
            "seconds": start,
            "ledger": dataclasses.asdict(self._buffer.snapshot()),
            "position": self._prompts.position(),
            "live_groups": [[group.group_id, group.prompt.epoch, group.prompt.row] for group in self._buffer.live_groups()],
            "extra": self._extra_state(),
        }
        folder = await self._folders.save(version, state, self._save_parts)
        self._saved_version = version
        self._events.emit(CheckpointSaved(version=version, folder=folder, seconds=self._clock() - start))

    async def _save_parts(self, folder: Path) -> None:
        await self._trainer.save(folder)
        await asyncio.to_thread(self._save_beside, folder)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """A checkpoint, verified and read."""

    folder: Path
    version: int
    seconds: float
    """The run's clock when it was saved."""
    ledger: Ledger
    position: Mapping[str, int | str]
    live_groups: tuple[tuple[int, int, int], ...]
    """(group_id, epoch, row), in the order of admission."""
    extra: Mapping[str, Any]


def read_checkpoint(folder: Path) -> ResumedRun:
    """Read the run's state from a verified checkpoint.

    Raises:
        CheckpointError: It was written in a format that this version of headrace does not know.
    """
    state = read_state(folder)
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {state.get('format')!r}, this version of headrace reads {FORMAT}; "
            "go on with the version that wrote it"
        )
    return ResumedRun(
        folder=folder,
        version=state["version"],
        seconds=state["seconds"],
        ledger=Ledger(**state["ledger"]),
        position=state["position"],
        live_groups=tuple((group_id, epoch, row) for group_id, epoch, row in state["live_groups"]),
        extra=state["extra"],
    )


async def restore(run: ResumedRun, *, trainer: Trainer, buffer: GroupBuffer, prompts: PromptSource) -> list[AdmittedGroup]:
    """Put a checkpoint's state back into the parts.

    Returns:
        The groups that were live, back in the buffer, to be given to the pipeline.

    Raises:
        CheckpointError: It belongs to another model, or its batches do not fit the recipe.
        DataError: It was saved with other data.
    """
    await trainer.load(run.folder)
    prompts.seek(run.position)
    buffer.restore(run.ledger, version=run.version)
    return [buffer.readmit(group_id, prompts.get(epoch=epoch, row=row)) for group_id, epoch, row in run.live_groups]
