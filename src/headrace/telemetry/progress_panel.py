"""The view of a running run on a terminal: built from a status, without side effects."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headrace.telemetry.distances import REVERSE_KL
from headrace.telemetry.formatting import count, duration, facts_table, share, sparkline
from headrace.telemetry.run_status import RunStatus

_WIDTH = 100
_SPARKLINE_WIDTH = 44


def progress_panel(title: str, status: RunStatus, spinner: Spinner) -> RenderableType:
    """The panel for a status. It does not change when the status does, so that another thread may draw it."""
    body = Group(_step_line(status, spinner), Text(), facts_table(_facts(status)))
    return Panel(body, title=Text(title, style="bold"), title_align="left", border_style="cyan", padding=(1, 2), width=_WIDTH)


@dataclass(frozen=True)
class _Clock:
    """Elapsed and remaining time, going on between events."""

    elapsed: float
    left: float | None
    taken_at: float = field(default_factory=time.monotonic)

    def __rich__(self) -> Text:
        since = time.monotonic() - self.taken_at
        text = Text.assemble((duration(self.elapsed + since), "bold"), no_wrap=True)
        if self.left:
            text.append(f"  ETA {duration(max(self.left - since, 0.0))}", style="dim")
        return text


def _step_line(status: RunStatus, spinner: Spinner) -> RenderableType:
    last = status.last_version
    line = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, None, 1, None):
        line.add_column(ratio=ratio, no_wrap=True)
    done = Text.assemble("step ", (str(status.version), "bold"), "" if last is None else f"/{last}")
    line.add_row(
        spinner,
        done,
        ProgressBar(total=last, completed=status.version, complete_style="cyan", finished_style="green"),
        _Clock(status.time, status.seconds_left),
    )
    return line


def _facts(status: RunStatus) -> Iterable[tuple[str, Text]]:
    if "reward" in status.metrics or (status.metrics and REVERSE_KL not in status.metrics):
        yield "reward", _reward(status)
    if REVERSE_KL in status.metrics:
        yield "reverse KL", _reverse_kl(status)
    if status.evaluations:
        yield "held-out", _held_out(status)
    if status.metrics:
        yield "length", _length(status.metrics)
        yield "staleness", _staleness(status)
        yield "tokens/s", _rates(status.metrics)
        yield "last step", _last_step(status.metrics)
    yield "now", _now(status)
    yield "groups", _groups(status)


def _reward(status: RunStatus) -> Text:
    reward = status.metrics.get("reward")
    now = "none was scored" if reward is None else f"{reward:.3f}"
    text = Text.assemble((now, "bold green"), (f"  {sparkline(status.rewards, _SPARKLINE_WIDTH)}", "green"))
    if equal := status.metrics.get("frac_reward_zero_std"):
        text.append(f"  {share(equal)} of groups without signal", style="dim")
    return text


def _reverse_kl(status: RunStatus) -> Text:
    text = Text.assemble((f"{status.metrics[REVERSE_KL]:.4f}", "bold green"))
    text.append(f"  {sparkline(status.reverse_kls, _SPARKLINE_WIDTH)}", style="green")
    return text.append("  nats a token from the teacher", style="dim")


def _held_out(status: RunStatus) -> Text:
    values = [metrics["eval/reward"] for _, metrics in status.evaluations if "eval/reward" in metrics]
    if not values:
        return Text("not scored")
    text = Text.assemble((f"{values[-1]:.3f}", "bold magenta"))
    if len(values) > 1:
        text.append(f"  {sparkline(values, _SPARKLINE_WIDTH)}", style="magenta")
        text.append(f"  from {values[0]:.3f} at step {status.evaluations[0][0]}", style="dim")
    text.append(f"  (step {status.evaluations[-1][0]})", style="dim")
    return text


def _length(metrics: dict[str, float]) -> Text:
    mean, longest = metrics.get("completions/mean_length", 0), metrics.get("completions/max_length", 0)
    clipped = share(metrics.get("completions/clipped_ratio", 0))
    return Text(f"mean {mean:.0f}   max {longest:.0f} tokens   cut off {clipped}")


def _staleness(status: RunStatus) -> Text:
    mean, worst = status.metrics.get("staleness/mean", 0), status.metrics.get("staleness/max", 0)
    limit = status.started.max_staleness if status.started else 0
    text = Text(f"mean {mean:.2f}   max {worst:.0f}   worst so far {status.worst_staleness}")
    return text.append(f"   limit {limit}", style="dim")


def _rates(metrics: dict[str, float]) -> Text:
    generated, trained = metrics.get("tokens_per_second/generated", 0), metrics.get("tokens_per_second/trained", 0)
    return Text.assemble("generated ", (count(generated), "bold"), "   trained ", (count(trained), "bold"))


def _last_step(metrics: dict[str, float]) -> Text:
    trainer, engine = metrics.get("wait_share/trainer", 0), metrics.get("wait_share/engine", 0)
    return Text(f"{duration(metrics['time/step'])}   trainer waited {share(trainer)}   engine idle {share(engine)}")


def _now(status: RunStatus) -> Text:
    generating, scoring, ready = len(status.generating), len(status.scoring), len(status.ready)
    text = Text.assemble("generating ", (str(generating), "bold"), "   scoring ", (str(scoring), "bold"), "   ready ", (str(ready), "bold"))
    slots = status.started.slots if status.started else 0
    return text.append(f"   of {slots} slots", style="dim")


def _groups(status: RunStatus) -> Text:
    discarded = sum(status.discarded.values())
    text = Text(f"trained {status.trained_groups}   discarded {discarded}")
    if reasons := [f"{number} {reason}" for reason, number in sorted(status.discarded.items()) if number]:
        text.append(f" ({', '.join(reasons)})", style="dim")
    for name, number in (("failed rewards", status.failed_rewards), ("skipped updates", status.skipped_updates)):
        text.append(f"   {name} {number}", style="bold red" if number else "")
    return text
