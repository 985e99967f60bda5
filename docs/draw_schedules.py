"""Draws docs/images/schedules.png, three schedules on one time scale: `python docs/draw_schedules.py [FOLDER] [key=value ...]`.

FOLDER (runs/schedules) holds a run of each schedule. One that is not there is made first, of the quickstart with the keys given on
top; that takes a minute or two each.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from headrace.telemetry.trace_file import read_trace

PICTURE = Path(__file__).with_name("images") / "schedules.png"
SCHEDULES = ("sync", "periodic", "async")
KEYS = ("training.max_steps=4", "data.held_out=0", "telemetry.profile=true")
NUM_STEPS_SHOWN = 3
"""Of the slowest schedule; the others show what they do in the same time."""

LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
STEP_COLORS = ("#2b6cb0", "#dd6b20", "#2f855a", "#805ad5")
INK, WAITING, PUBLISHING = "#2d3748", "#a0aec0", "#c53030"
ROWS = {"rollouts": (4.4, 7.4), "rewards": (3.4, 4.1), "micro-batches": (2.2, 3.1), "optimizer step": (1.1, 2.0), "publish": (0.2, 0.9)}
"""Bottom and top of each row of a time line."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A slice of a trace, in seconds."""

    track: str
    name: str
    start: float
    end: float
    args: dict[str, Any]


def read_slices(trace: Path) -> list[Slice]:
    """The slices of the last process in a trace; what had not ended is left out."""
    events = read_trace(trace)
    process = max(event["pid"] for event in events)
    return list(_slices([event for event in events if event["pid"] == process]))


def _slices(events: Sequence[dict[str, Any]]) -> Iterator[Slice]:
    tracks: dict[int, str] = {}
    begun: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case {"name": "thread_name", "tid": tid, "args": args}:
                tracks[tid] = args["name"]
            case {"ph": "X", "tid": tid, "name": name, "ts": start, "dur": length, "args": args}:
                yield Slice(track=tracks[tid], name=name, start=start / 1e6, end=(start + length) / 1e6, args=args)
            case {"ph": "B", "tid": tid}:
                begun[tid] = event
            case {"ph": "E", "tid": tid, "ts": end, "args": args}:
                begin = begun.pop(tid)
                yield Slice(track=tracks[tid], name=begin["name"], start=begin["ts"] / 1e6, end=end / 1e6, args=begin["args"] | args)


def draw(traces: Mapping[str, Path], picture: Path) -> None:
    """Draw the time lines of traces, by their titles, under each other; each begins with its first rollout."""
    runs = {title: read_slices(trace) for title, trace in traces.items()}
    figure = Figure(figsize=(11, 9.5), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(len(runs), 1, sharex=True)
    for ax, (title, slices) in zip(axes, runs.items(), strict=True):
        _style(ax, title)
        TimeLine(ax, slices).draw()
    axes[-1].set_xlim(0, max(_seconds_shown(slices) for slices in runs.values()))
    axes[-1].set_xlabel("seconds", color=INK)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=7, frameon=False, labelcolor=INK)
    picture.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_figure(picture, format="png", dpi=130)


class TimeLine:
    """One run's picture."""

    def __init__(self, ax: Axes, slices: Sequence[Slice]) -> None:
        self._ax = ax
        self._slices = slices
        self._zero = _first_rollout(slices)
        self._num_lanes = len({each.track for each in slices if each.track.startswith("rollouts")})
        self._trained_at = {
            group_id: each.args["version"] for each in slices if each.name == "micro-batch" for group_id in each.args["group_ids"]
        }

    def draw(self) -> None:
        """Draw every slice in its row."""
        for each in self._slices:
            match each.track.split(" ")[0], each.name:
                case "rollouts", _:
                    self._bar(each, self._lane(each.track), _color(self._trained_at.get(each.args["group_id"])), edgecolor="white")
                case "rewards", _:
                    self._bar(each, ROWS["rewards"], _color(self._trained_at.get(each.args["group_id"])), linewidth=1)
                case "engine", "no rollouts":
                    self._wait(each, ROWS["rollouts"])
                case "trainer", "wait for groups":
                    self._wait(each, ROWS["micro-batches"])
                case "trainer", "micro-batch":
                    self._bar(each, ROWS["micro-batches"], _color(each.args["version"]), edgecolor="white")
                case "trainer", "optimizer step":
                    self._bar(each, ROWS["optimizer step"], _color(each.args["version"] - 1))
                case "publish", _ if each.start > self._zero:
                    self._publication(each)

    def _publication(self, each: Slice) -> None:
        self._bar(each, ROWS["publish"], PUBLISHING, linewidth=1)
        time = each.end - self._zero
        self._ax.axvline(time, color=PUBLISHING, linewidth=0.8, linestyle="--", zorder=0)
        label = f"version {each.args['version']}"
        self._ax.text(time, 7.6, label, color=PUBLISHING, fontsize=8, ha="center", clip_on=True, bbox=LABEL_BOX)

    def _wait(self, each: Slice, row: tuple[float, float]) -> None:
        self._bar(each, row, "white", edgecolor=WAITING, hatch="////", alpha=0.5)

    def _bar(self, each: Slice, row: tuple[float, float], color: str, **style: Any) -> None:
        bottom, top = row
        style = {"edgecolor": color, "linewidth": 0.5} | style
        self._ax.barh(bottom, each.end - each.start, top - bottom, each.start - self._zero, align="edge", facecolor=color, **style)

    def _lane(self, track: str) -> tuple[float, float]:
        """The strip of a lane; the first lane is the highest."""
        bottom, top = ROWS["rollouts"]
        height = (top - bottom) / self._num_lanes
        lane_top = top - (int(track.split(" ")[1]) - 1) * height
        return lane_top - height, lane_top


def _color(version: int | None) -> str:
    """Of the step that trains at a version; None: no step has trained on it."""
    return "#cbd5e0" if version is None else STEP_COLORS[version % len(STEP_COLORS)]


def _first_rollout(slices: Sequence[Slice]) -> float:
    return min(each.start for each in slices if each.track.startswith("rollouts"))


def _seconds_shown(slices: Sequence[Slice]) -> float:
    ends = sorted(each.end for each in slices if each.track == "publish" and each.start > _first_rollout(slices))
    return (ends[:NUM_STEPS_SHOWN][-1] - _first_rollout(slices)) * 1.03


def _style(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    ax.set_ylim(0, 8)
    ax.set_yticks([sum(row) / 2 for row in ROWS.values()], list(ROWS), color=INK)
    ax.tick_params(length=0, colors=INK)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _legend() -> list[Patch]:
    steps = [Patch(color=_color(version), label=f"of step {version + 1}") for version in range(len(STEP_COLORS))]
    waiting = Patch(facecolor="white", edgecolor=WAITING, hatch="////", label="waits")
    return [*steps, waiting, Patch(color=PUBLISHING, label="publish")]


def main(arguments: Sequence[str]) -> None:
    """Make the runs that are missing, and draw."""
    keys = [argument for argument in arguments if "=" in argument]
    folders = [Path(argument) for argument in arguments if "=" not in argument] or [Path("runs/schedules")]
    runs = {schedule: folders[0] / schedule for schedule in SCHEDULES}
    for schedule, run in runs.items():
        if not (run / "summary.json").is_file():
            chosen = [*KEYS, f"schedule.type={schedule}", f"run.output_dir={run}", *keys]
            subprocess.run([sys.executable, "-m", "headrace", "train", "recipes/quickstart.toml", *chosen], check=True)
    draw({schedule: run / "trace.json" for schedule, run in runs.items()}, PICTURE)


if __name__ == "__main__":
    main(sys.argv[1:])
