import asyncio
import json
from pathlib import Path

import pytest

from headrace.controller.checkpoints import CheckpointFolders, read_state
from headrace.errors import CheckpointError, RunFolderError


async def save_weights(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"0123456789")
    (folder / "nested").mkdir()
    (folder / "nested" / "more.bin").write_bytes(b"abc")


def saved(run_folder: Path, *versions: int, keep_last: int = 2) -> CheckpointFolders:
    folders = CheckpointFolders(run_folder, keep_last=keep_last)
    for version in versions:
        asyncio.run(folders.save(version, {"version": version}, save_weights))
    return folders


def test_the_newest_is_found_by_number_and_the_oldest_are_removed(tmp_path: Path) -> None:
    latest = saved(tmp_path, 8, 9, 10).latest()
    assert latest == tmp_path / "checkpoint-10"
    assert read_state(latest) == {"version": 10}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9"]


def test_without_checkpoints_there_is_no_latest(tmp_path: Path) -> None:
    assert CheckpointFolders(tmp_path, keep_last=1).latest() is None


def test_what_a_kill_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    folders = saved(tmp_path, 1)
    (tmp_path / "checkpoint-2.partial").mkdir()
    (tmp_path / "checkpoint-2.partial" / "weights.bin").write_bytes(b"01")
    assert folders.latest() == tmp_path / "checkpoint-1"
    asyncio.run(folders.save(2, {}, save_weights))
    assert folders.latest() == tmp_path / "checkpoint-2"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "weights.bin").write_bytes(b"01234"), "weights.bin has 5 bytes, its manifest says 10 bytes"),
        (lambda folder: (folder / "weights.bin").write_bytes(b"012345678X"), "weights.bin is not what was written"),
        (lambda folder: (folder / "nested" / "more.bin").unlink(), "more.bin is missing, its manifest says 3 bytes"),
        (lambda folder: (folder / "manifest.json").unlink(), "no readable manifest.json"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_what_to_do(tmp_path: Path, damage, message: str) -> None:
    folders = saved(tmp_path, 3)
    damage(tmp_path / "checkpoint-3")
    with pytest.raises(CheckpointError, match=rf"{message}.*; remove .*checkpoint-3 to go on from the checkpoint before it"):
        folders.latest()


def test_a_full_disk_leaves_the_earlier_checkpoint_and_says_what_to_do(tmp_path: Path) -> None:
    async def write_to_a_full_disk(folder: Path) -> None:
        await asyncio.to_thread(Path("/dev/full").write_bytes, b"x")

    folders = saved(tmp_path, 1)
    with pytest.raises(RunFolderError, match=r"the checkpoint of step 2 could not be written .* No space left on device; free space"):
        asyncio.run(folders.save(2, {}, write_to_a_full_disk))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert folders.latest() == tmp_path / "checkpoint-1"


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    manifest = json.loads((tmp_path / "checkpoint-1" / "manifest.json").read_text())
    assert {name: entry["bytes"] for name, entry in manifest.items()} == {"nested/more.bin": 3, "run_state.json": 14, "weights.bin": 10}
