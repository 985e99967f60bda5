"""Writes the measured part of docs/staleness_study.md, and its picture, from the study's results."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from charts import INK, style
from machine import ROOT
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import machine_line, table, with_measurements

PAGE = ROOT / "docs" / "staleness_study.md"
PICTURE = ROOT / "docs" / "images" / "staleness_study.png"
COLORS = {"ppo": "#c05621", "areal": "#2f855a", "a3po": "#2b6cb0"}
LABELS = {"ppo": "PPO, no correction", "areal": "areal", "a3po": "a3po"}

Run = Mapping[str, Any]
Cell = tuple[int, str]
"""(max_staleness, algorithm)."""


def write_report(results: Mapping[str, Any], *, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Page and picture, from the runs that there are."""
    cells = by_cell(results["runs"])
    draw(cells, picture)
    page.write_text(with_measurements(page.read_text(encoding="utf-8"), "\n".join(measured(results, cells))), encoding="utf-8")


def by_cell(runs: Sequence[Run]) -> dict[Cell, list[Run]]:
    """The runs of each cell of the table, over seeds."""
    cells: dict[Cell, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run["condition"]["max_staleness"], list(COLORS).index(run["condition"]["algorithm"]))):
        cells.setdefault((run["condition"]["max_staleness"], run["condition"]["algorithm"]), []).append(run)
    return cells


def measured(results: Mapping[str, Any], cells: Mapping[Cell, Sequence[Run]]) -> Iterator[str]:
    """Markdown, line by line."""
    yield machine_line(results)
    before = statistics.fmean(run["accuracy_before"] for run in results["runs"])
    yield f"Before training the model answers {before:.1%} of the held-out questions.\n"
    yield from table(
        ["max_staleness, algorithm", "accuracy", "seeds", "mean staleness", "clipped tokens", "largest w", "ESS", "seconds"],
        [row(cell, runs) for cell, runs in cells.items()],
    )
    yield "\n![Accuracy by largest staleness and algorithm](images/staleness_study.png)"


def row(cell: Cell, runs: Sequence[Run]) -> tuple[str, ...]:
    def mean(name: str) -> float:
        return statistics.fmean(run[name] for run in runs)

    accuracies = [run["accuracy"] for run in runs]
    spread = f" ({min(accuracies):.1%}–{max(accuracies):.1%})" if len(runs) > 1 else ""
    return (
        f"{cell[0]}, {LABELS[cell[1]]}",
        f"{statistics.fmean(accuracies):.1%}{spread}",
        str(len(runs)),
        f"{mean('mean_staleness'):.1f}",
        f"{mean('clip_share'):.2%}",
        f"{max(run['largest_weight'] for run in runs if run['largest_weight'] is not None):.3g}",
        f"{mean('ess'):.2f}",
        f"{mean('seconds'):.0f}",
    )


def draw(cells: Mapping[Cell, Sequence[Run]], path: Path) -> None:
    """Accuracy over max_staleness: a line an algorithm, a dot a seed."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    ax = style(figure.subplots())
    steps = sorted({staleness for staleness, _ in cells})
    for algorithm, color in COLORS.items():
        own = {steps.index(staleness): runs for (staleness, of), runs in cells.items() if of == algorithm}
        ax.plot(
            list(own), [statistics.fmean(run["accuracy"] for run in runs) for runs in own.values()], color=color, label=LABELS[algorithm]
        )
        for place, runs in own.items():
            ax.plot([place] * len(runs), [run["accuracy"] for run in runs], "o", color=color, markersize=5)
    ax.set_xticks(range(len(steps)), map(str, steps))
    ax.set_xlabel("max_staleness", color=INK)
    ax.set_ylim(0, 1)
    ax.set_title("Accuracy on held-out additions after training", loc="left", color=INK)
    ax.legend(frameon=False, labelcolor=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, format="png", dpi=140)
