"""The curves of a run as one picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, MaxNLocator

from headrace.errors import RunFolderError
from headrace.telemetry.distances import REVERSE_KL
from headrace.telemetry.metrics_log import read_metrics
from headrace.telemetry.run_files import replacing

_BLUE, _ORANGE, _GREEN, _RED, _INK = "#2b6cb0", "#c05621", "#2f855a", "#c53030", "#2d3748"

Rows = Sequence[dict[str, Any]]


def plot_curves(metrics_path: Path, png_path: Path, *, title: str) -> None:
    """Draw reward and held-out reward (or the distance to a teacher), completion length, staleness and throughput over the steps.

    Args:
        metrics_path: A run's `metrics.jsonl`.
        png_path: The picture to write; it appears whole or not at all.
        title: Stands above the curves.

    Raises:
        RunFolderError: There are no metrics yet, or the picture cannot be written.
    """
    rows = read_metrics(metrics_path)
    num_steps = sum("time/step" in row for row in rows)
    if not num_steps:
        raise RunFolderError(f"{metrics_path} has no training step yet, so there is nothing to draw; wait for the first step")
    figure = Figure(figsize=(11, 7), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=_INK)
    figure.supxlabel(_step_label(num_steps), fontsize=10, color=_INK)
    for (name, draw), ax in zip(_panels(rows).items(), figure.subplots(2, 2, sharex=True).flat, strict=True):
        _style(ax, name)
        draw(ax, rows)
        ax.legend(frameon=False, labelcolor=_INK)
    with replacing(png_path) as aside:
        canvas.print_figure(aside, format="png", dpi=140)


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Mean of each value and the `window - 1` values before it (of all there are, at the start), float array of [values]."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _draw_reward(ax: Axes, rows: Rows) -> None:
    _smoothed(ax, rows, "reward", _BLUE, "training")
    steps, values = _series(rows, "eval/reward")
    if steps:
        ax.plot(steps, values, "o-", color=_ORANGE, markersize=7, linewidth=1, markeredgecolor="white", label="held out", zorder=4)


def _draw_reverse_kl(ax: Axes, rows: Rows) -> None:
    _smoothed(ax, rows, REVERSE_KL, _BLUE, "training")


def _draw_length(ax: Axes, rows: Rows) -> None:
    steps, shortest = _series(rows, "completions/min_length")
    _, longest = _series(rows, "completions/max_length")
    ax.fill_between(steps, shortest, longest, color=_GREEN, alpha=0.1, linewidth=0, label="shortest to longest")
    _smoothed(ax, rows, "completions/mean_length", _GREEN, "mean")
    ax.set_ylim(bottom=0)


def _draw_staleness(ax: Axes, rows: Rows) -> None:
    steps, worst = _series(rows, "staleness/max")
    ax.step(steps, worst, where="mid", color=_RED, linewidth=1.4, label="max")
    ax.plot(*_series(rows, "staleness/mean"), color=_BLUE, linewidth=1.8, label="mean")
    ax.set_ylim(0, max([1.0, *worst]) * 1.08)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_rates(ax: Axes, rows: Rows) -> None:
    _smoothed(ax, rows, "tokens_per_second/generated", _ORANGE, "generated")
    _smoothed(ax, rows, "tokens_per_second/trained", _BLUE, "trained on")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))


def _panels(rows: Rows) -> dict[str, Callable[[Axes, Rows], None]]:
    learned_from_teacher_alone = any(REVERSE_KL in row for row in rows) and not any("reward" in row for row in rows)
    return {
        **({"Reverse KL to the teacher, nats a token": _draw_reverse_kl} if learned_from_teacher_alone else {"Reward": _draw_reward}),
        "Completion length in tokens": _draw_length,
        "Staleness of the tokens trained on, in steps": _draw_staleness,
        "Tokens per second": _draw_rates,
    }


def _smoothed(ax: Axes, rows: Rows, name: str, color: str, label: str) -> None:
    """Each step's value, pale, and the running mean over it."""
    steps, values = _series(rows, name)
    ax.plot(steps, values, color=color, alpha=0.3, linewidth=1)
    ax.plot(steps, running_mean(values, _window(len(values))), color=color, linewidth=2.2, label=label)


def _series(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    points = [(row["step"], row[name]) for row in rows if name in row]
    return [step for step, _ in points], [value for _, value in points]


def _window(num_steps: int) -> int:
    return max(1, min(20, num_steps // 10))


def _step_label(num_steps: int) -> str:
    window = _window(num_steps)
    return "step" if window == 1 else f"step    (bold lines: mean of the last {window} steps)"


def _style(ax: Axes, name: str) -> None:
    ax.set_title(name, loc="left", fontsize=11, color=_INK)
    ax.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=0, colors="#4a5568")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
