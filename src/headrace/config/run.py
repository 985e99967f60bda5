"""`[run]` and `[telemetry]`: the run itself and what it reports."""

from typing import Literal

from pydantic import Field

from headrace.config.base import Section


class RunSection(Section):
    """Where the run lives, and its seed."""

    output_dir: str = Field(min_length=1)
    """Run folder; refused when it exists, unless resumed."""
    seed: int = Field(default=0, ge=0)
    """Fixes the held-out split, the order of prompts and the random numbers of every rollout."""
    stall_seconds: float = Field(default=900.0, gt=0)
    """No wait lasts longer: the run ends with an error that names what it waited for."""


class TelemetrySection(Section):
    """Sinks beside the event log, the metrics file, the samples and the screen, which every run has."""

    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = ["tensorboard"]
    """Where metrics also go."""
    project: str = "headrace"
    """Project name for W&B and trackio."""
    save_samples_every: int = Field(default=1, ge=1)
    """Steps between files of samples (Parquet)."""
    profile: bool = False
    """Whether to write `trace.json`, the time line of the run, for ui.perfetto.dev or chrome://tracing."""
