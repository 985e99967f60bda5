"""The sinks of a run: its own files, the screen, and the trackers that the recipe asks for."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from headrace.config.recipe import Recipe
from headrace.launch.memory import FreedMemoryReturner
from headrace.launch.run_folder import RunFolder
from headrace.telemetry.event_log import EventLog
from headrace.telemetry.events import Sink
from headrace.telemetry.metrics_log import MetricsLog
from headrace.telemetry.progress import ProgressView
from headrace.telemetry.samples import SamplesWriter
from headrace.telemetry.summary import SummaryBuilder
from headrace.telemetry.tensorboard_sink import TensorBoardTracker
from headrace.telemetry.trace import TraceLog
from headrace.telemetry.trackers import Tracker, TrackerSink
from headrace.telemetry.trackio_sink import TrackioTracker
from headrace.telemetry.wandb_sink import WandbTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSinks:
    """All sinks in their order, and the two that the run itself asks for results."""

    all: tuple[Sink, ...]
    summary: SummaryBuilder
    progress: ProgressView

    def close(self) -> None:
        """Close every sink, in order; the screen, after all files, then says what the run achieved."""
        for sink in self.all:
            sink.close()


def make_sinks(recipe: Recipe, folder: RunFolder, console: Console, *, version: int, summary_state: Mapping[str, Any] | None) -> RunSinks:
    """Open every sink.

    Args:
        recipe: The recipe.
        folder: The run's folder.
        console: Where progress is shown.
        version: Version that the run goes on from; 0 for a new one.
        summary_state: The summary's totals in the checkpoint.

    Raises:
        UserError: A tracker is not installed or does not start.
        RunFolderError: The folder cannot be written.
    """
    summary = SummaryBuilder(summary_state)
    places = {
        "model": folder.final,
        "samples": folder.samples,
        "curves": folder.curves,
        "metrics": folder.metrics,
        "summary": folder.summary,
        **({"trace": folder.trace} if recipe.telemetry.profile else {}),
    }
    progress = ProgressView(console, title=f"headrace · {folder.path.name} · {recipe.schedule.type}", summary=summary, places=places)
    openers: list[Callable[[], Sink]] = [
        lambda: EventLog(folder.event_log),
        lambda: MetricsLog(folder.metrics, version=version),
        lambda: SamplesWriter(folder.samples, every=recipe.telemetry.save_samples_every),
        *([lambda: TraceLog(folder.trace, version=version)] if recipe.telemetry.profile else []),
        *(partial(_tracker_sink, name, recipe, folder, version=version, warn=progress.warn) for name in recipe.telemetry.report_to),
    ]
    with ExitStack() as opened:
        sinks: list[Sink] = []
        for open_sink in openers:
            sinks.append(open_sink())
            opened.callback(sinks[-1].close)
        opened.pop_all()  # (all of them opened: the run closes them)
    return RunSinks(all=(*sinks, summary, progress, FreedMemoryReturner()), summary=summary, progress=progress)


def _tracker_sink(name: str, recipe: Recipe, folder: RunFolder, *, version: int, warn: Callable[[str], None]) -> TrackerSink:
    return TrackerSink(name, _tracker(name, recipe, folder, version=version), warn=warn)


def _tracker(name: str, recipe: Recipe, folder: RunFolder, *, version: int) -> Tracker:
    project, config = recipe.telemetry.project, recipe.model_dump(mode="json")
    match name:
        case "tensorboard":
            return TensorBoardTracker(folder.tensorboard, version=version)
        case "wandb":
            return WandbTracker(project=project, name=folder.path.name, folder=folder.path, config=config)
        case _:
            return TrackioTracker(project=project, name=folder.path.name, config=config)
