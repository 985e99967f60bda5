"""Metrics to Weights & Biases."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.telemetry.run_files import disk_errors
from headrace.telemetry.trackers import import_tracker


class WandbTracker:
    """A W&B run. Metrics are drawn over `step`, their own axis, so that a resumed run may log a step again.

    Args:
        project: W&B project.
        name: Name of the run in the charts.
        folder: Where W&B keeps its local files, and `wandb_run_id` with which a resumed run goes on in the same charts.
        config: What to show as the run's configuration.

    Raises:
        UserError: The package is missing, or W&B does not start (no login, no network).
    """

    def __init__(self, *, project: str, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = import_tracker("wandb")
        run_id = _run_id(folder)
        try:
            self._run = wandb.init(project=project, name=name, id=run_id, resume="allow", dir=str(folder), config=dict(config))
        except wandb.errors.Error as error:
            raise UserError(
                f"W&B does not start: {error}; run: wandb login, or set WANDB_MODE=offline, or take 'wandb' out of telemetry.report_to"
            ) from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics over; W&B sends them from its own process."""
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        """Send what is left, and end the run."""
        self._run.finish()


def _run_id(folder: Path) -> str:
    file = folder / "wandb_run_id"
    with disk_errors(file):
        if not file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(uuid.uuid4().hex)
        return file.read_text()
