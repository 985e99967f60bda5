"""The folder of a run: what lies where in it, and whether a new or a resumed run may use it."""

import fcntl
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.config.loading import dump_recipe
from headrace.config.recipe import Recipe
from headrace.errors import CheckpointError, RunFolderError, UserError
from headrace.telemetry.run_files import disk_errors, replacing

MAY_CHANGE = {
    "run.output_dir",
    "run.stall_seconds",
    "training.max_steps",
    "training.num_train_epochs",
    "training.threads",
    "training.token_budget",
    "rewards.num_workers",
    "rewards.time_limit_seconds",
    "rewards.max_failed_groups",
    "algorithm.max_groups_without_signal",
    "teacher.url",
    "teacher.api_key_env",
    "teacher.max_concurrent_requests",
    "teacher.timeout_seconds",
    "teacher.max_attempts",
    "engine",
    "evaluation",
    "checkpoint",
    "telemetry",
    "shadow",
}
"""Keys and sections that a resumed run may set anew; the others would make it another run."""


class RunFolder:
    """Paths of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"
        self.event_log = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples"
        self.tensorboard = path / "tensorboard"
        self.curves = path / "curves.png"
        self.trace = path / "trace.json"
        self.summary = path / "summary.json"
        self.final = path / "final"

    @contextmanager
    def opened(self, recipe: Recipe, *, resume: bool) -> Iterator[None]:
        """Hold the folder against other runs; a new run's folder is made, with the resolved recipe in it.

        Raises:
            RunFolderError: A new run's folder exists, a resumed run's does not, or another process uses it.
            CheckpointError: The resumed run was started with another recipe.
        """
        if resume and self.recipe.is_file():
            self._check_recipe(recipe)
        elif self.path.exists() and any(self.path.iterdir()) and not resume:
            raise RunFolderError(
                f"the run folder {self.path} exists already, and a new run would overwrite it; go on with --resume, "
                "or choose another run.output_dir"
            )
        is_new = not self.path.exists()
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with self._locked():
                with replacing(self.recipe) as aside:
                    aside.write_text(dump_recipe(recipe), encoding="utf-8")
                yield
        except (UserError, KeyboardInterrupt):
            if is_new and not (self.event_log.is_file() and self.event_log.stat().st_size):
                # The run never began: the mended command shall not meet the leftovers of its start.
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with disk_errors(self.path):
            lock = (self.path / ".lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(f"another process is training in {self.path}; wait for it, or choose another run.output_dir") from None
            yield

    def _check_recipe(self, recipe: Recipe) -> None:
        saved = _flat(tomllib.loads(self.recipe.read_text(encoding="utf-8")))
        given = _flat(tomllib.loads(dump_recipe(recipe)))
        changed = [
            f"{key}: {saved.get(key, 'unset')} there, {given.get(key, 'unset')} here"
            for key in sorted(saved.keys() | given.keys())
            if saved.get(key) != given.get(key) and key not in MAY_CHANGE and key.split(".")[0] not in MAY_CHANGE
        ]
        if changed:
            raise CheckpointError(
                f"{self.path} was started with another recipe ({'; '.join(changed)}), so its checkpoint does not fit; "
                "resume with the same settings, or start a new run in another run.output_dir"
            )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        flat.update(_flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat
