"""Checkpoint folders: complete or absent, never in between.

A checkpoint is written aside, every file is flushed to disk, a manifest with sizes and SHA-256 sums is added, and the
folder is renamed to `checkpoint-N`. A kill at any moment leaves either the folder or none.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, RunFolderError

MANIFEST = "manifest.json"
STATE = "run_state.json"

RunState = Mapping[str, Any]
"""JSON-able state of everything but the trainer: version, books, data position, live prompts, telemetry."""


class CheckpointFolders:
    """The checkpoints of one run folder; the newest `keep_last` stay."""

    def __init__(self, run_folder: Path, *, keep_last: int) -> None:
        self._run_folder = run_folder
        self._keep_last = keep_last

    async def save(self, version: int, state: RunState, save_trainer: Callable[[Path], Awaitable[None]]) -> Path:
        """Write the checkpoint of a version and remove the oldest ones.

        Raises:
            RunFolderError: The disk is full or not writable; earlier checkpoints are untouched.
        """
        final = self._run_folder / f"checkpoint-{version}"
        partial = self._run_folder / f"checkpoint-{version}.partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
            await save_trainer(partial)
            await asyncio.to_thread(seal, partial)
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            _flush_folder(self._run_folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise RunFolderError(
                f"the checkpoint of step {version} could not be written to {self._run_folder}: {error.strerror or error}; "
                "free space there, then go on from the last checkpoint with --resume"
            ) from error
        for old in self._complete()[: -self._keep_last]:
            await asyncio.to_thread(shutil.rmtree, old)
        return final

    def latest(self) -> Path | None:
        """The newest checkpoint, verified; None when there is none.

        Raises:
            CheckpointError: Its files are not those that were written.
        """
        complete = self._complete()
        if not complete:
            return None
        verify(complete[-1])
        return complete[-1]

    def _complete(self) -> list[Path]:
        found = [(int(match[1]), path) for path in self._run_folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]


_NAME = re.compile(r"checkpoint-(\d+)")


def read_state(checkpoint: Path) -> RunState:
    """The run's state in a verified checkpoint."""
    return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))


def seal(folder: Path) -> None:
    """Flush every file of a folder to disk, and add the manifest of their sizes and SHA-256 sums."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    manifest = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in (*files, folder / MANIFEST):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _flush_folder(folder)


def verify(folder: Path) -> None:
    """Compare a folder with its manifest.

    Raises:
        CheckpointError: A file is missing, cut short or changed, or there is no manifest.
    """
    remedy = f"remove {folder} to go on from the checkpoint before it"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        raise CheckpointError(f"{folder} has no readable {MANIFEST}, so it is not a complete checkpoint; {remedy}") from None
    for name, expected in manifest.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise CheckpointError(f"{path} {found}, its manifest says {expected['bytes']} bytes; {remedy}")
        if sha256(path) != expected["sha256"]:
            raise CheckpointError(f"{path} is not what was written: its SHA-256 differs from the manifest's; {remedy}")


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
