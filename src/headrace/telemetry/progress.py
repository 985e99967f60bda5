"""The run on the screen: a live view on a terminal, plain lines in a file or a pipe."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headrace.telemetry.closing_report import closing_report
from headrace.telemetry.distances import REVERSE_KL
from headrace.telemetry.events import (
    CheckpointSaved,
    EvaluationFinished,
    Event,
    GroupDiscarded,
    GroupReady,
    RunFinished,
    RunStarted,
    StepFinished,
)
from headrace.telemetry.formatting import count, duration, printable, share
from headrace.telemetry.learning_signal import SignalWatch
from headrace.telemetry.progress_panel import progress_panel
from headrace.telemetry.run_status import RunStatus
from headrace.telemetry.summary import SummaryBuilder


class ProgressView:
    """Sink that shows the run while it runs, and what it achieved when it is closed.

    Args:
        console: Where to. On a terminal the view is redrawn in place; elsewhere each step and each evaluation is one line.
        title: Names the run on the view.
        summary: Adds the same run up; it must come before this sink among the sinks.
        places: What is where, for the end (`{"metrics": path, …}`); what was not written is not shown.
    """

    def __init__(self, console: Console, *, title: str, summary: SummaryBuilder, places: Mapping[str, Path]) -> None:
        self._console = console
        self._title = title
        self._summary = summary
        self._places = places
        self._status = RunStatus()
        self._signal = SignalWatch()
        self._finished = False
        self._reward_failed = False
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None

    def handle(self, time: float, event: Event) -> None:
        """Show one event."""
        self._status.observe(time, event)
        self._warn_about(event)
        if self._live is not None:
            self._live.update(progress_panel(self._title, self._status, self._spinner))
            if not self._live.is_started and isinstance(event, RunStarted):
                self._live.start()
        elif line := plain_line(event, self._status):
            self._console.print(Text(line), soft_wrap=True)
        self._finished = self._finished or isinstance(event, RunFinished)

    def close(self) -> None:
        """Leave the last view standing; after a run that ended by itself or by Ctrl-C, say what it achieved."""
        if self._live is not None:
            self._live.stop()
        if self._finished:
            written = {name: path for name, path in self._places.items() if path.exists()}
            self._console.print(closing_report(self._summary.summary(), written), crop=False)

    def warn(self, message: str) -> None:
        """Print a warning where it stays: above the live view, or as a line."""
        self._console.print(Text.assemble(("warning: ", "bold yellow"), printable(message)), soft_wrap=self._live is None)

    def _warn_about(self, event: Event) -> None:
        match event:
            case StepFinished():
                self._warn_if(self._signal.after_step(self._status.metrics))
                if event.report.skipped_updates:
                    self.warn(
                        f"step {event.report.version} skipped {event.report.skipped_updates} updates: the loss or a gradient was not finite"
                    )
            case GroupReady(error=str(error)) | GroupDiscarded(detail=str(error)) if not self._reward_failed:
                self._reward_failed = True
                self.warn(f"a reward function failed, and its rollouts have no reward: {error} (later failures are only counted)")
            case RunFinished():
                self._warn_if(self._signal.at_end())
            case _:
                pass

    def _warn_if(self, message: str | None) -> None:
        if message is not None:
            self.warn(message)


def plain_line(event: Event, status: RunStatus) -> str | None:
    """One line for an event; None for the events that are too many to read."""
    match event:
        case RunStarted():
            steps = f"step {event.version}" + ("" if event.last_version is None else f" of {event.last_version}")
            return f"start at {steps}: {event.prompts_per_step} groups a step, {event.slots} slots, max staleness {event.max_staleness}"
        case StepFinished():
            return _step_line(status)
        case EvaluationFinished():
            return _evaluation_line(event, status)
        case CheckpointSaved():
            return f"checkpoint of step {event.version}: {event.folder} ({duration(event.seconds)})"
        case _:
            return None


def _step_line(status: RunStatus) -> str:
    metrics = status.metrics
    generated, trained = metrics.get("tokens_per_second/generated", 0), metrics.get("tokens_per_second/trained", 0)
    parts = [
        f"step {status.version}" + ("" if status.last_version is None else f"/{status.last_version}"),
        *_learned_from(metrics),
        f"length {metrics.get('completions/mean_length', 0):.0f}",
        f"staleness {metrics.get('staleness/mean', 0):.2f} (max {metrics.get('staleness/max', 0):.0f})",
        f"tokens/s {count(generated)} generated, {count(trained)} trained",
        f"waited trainer {share(metrics.get('wait_share/trainer', 0))}, engine {share(metrics.get('wait_share/engine', 0))}",
        duration(metrics["time/step"]),
    ]
    if discarded := sum(status.discarded.values()):
        parts.append(f"discarded {discarded}")
    if status.failed_rewards:
        parts.append(f"failed rewards {status.failed_rewards}")
    if status.seconds_left:
        parts.append(f"ETA {duration(status.seconds_left)}")
    return "  ".join(parts)


def _learned_from(metrics: Mapping[str, float]) -> Iterator[str]:
    if "reward" in metrics or REVERSE_KL not in metrics:
        yield f"reward {metrics['reward']:.3f}" if "reward" in metrics else "reward none"
    if REVERSE_KL in metrics:
        yield f"reverse KL {metrics[REVERSE_KL]:.4f}"


def _evaluation_line(event: EvaluationFinished, status: RunStatus) -> str:
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in status.evaluations[-1][1].items() if name.startswith("eval/"))
    return f"evaluation at step {event.version}: {numbers}  ({duration(event.seconds)})"
