"""Pictures of the results."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headrace.telemetry.curves import running_mean

COLORS = {
    "headrace": "#2b6cb0",
    "async": "#2b6cb0",
    "sync": "#63b3ed",
    "periodic": "#4299e1",
    "trl": "#c05621",
    "transformers": "#c05621",
    "vllm": "#2f855a",
    "vllm-eager": "#68d391",
    "vllm-defaults": "#c6f6d5",
    "linear products": "#a0aec0",
    "measured": "#2b6cb0",
    "predicted by sharing alone": "#a0aec0",
}
INK = "#2d3748"
RUNNING_MEAN = 5


def draw_charts(benchmarks: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw what there is; file names by benchmark."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, (complete, draw) in CHARTS.items():
        if name in benchmarks and complete(benchmarks[name]):
            figure = Figure(figsize=(8, 3.6), layout="constrained")
            draw(style(figure.subplots()), benchmarks[name])
            drawn[name] = f"bench_{name}.png"
            FigureCanvasAgg(figure).print_figure(folder / drawn[name], format="png", dpi=140)
    return drawn


def style(ax: Axes) -> Axes:
    ax.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=0, colors="#4a5568")
    return ax


def draw_decode(ax: Axes, result: Mapping[str, Any]) -> None:
    rates = result["tokens_per_second"]
    groups = list(rates["headrace"])
    bars(ax, [f"{number} sequences" for number in groups], {name: [of_engine[n] for n in groups] for name, of_engine in rates.items()})
    ax.set_title("Decoded tokens per second", loc="left", color=INK)


def draw_training(ax: Axes, result: Mapping[str, Any]) -> None:
    prompts = result["prompts"]
    ratios = {
        "measured": [section["ratio"] for section in prompts],
        "predicted by sharing alone": [section["predicted_ratio"] for section in prompts],
    }
    bars(ax, [f"prompt of {section['prompt']:,}" for section in prompts], ratios)
    ax.set_title("Training throughput over the padded loop, 8 completions of 64 tokens", loc="left", color=INK)


def draw_rewards(ax: Axes, result: Mapping[str, Any]) -> None:
    for side, found in result["sides"].items():
        for index, curve in enumerate(found["curves"]):
            rewards = running_mean([step["reward"] for step in curve], RUNNING_MEAN)
            times = [step["time"] for step in curve]
            ax.plot(times, rewards, color=COLORS[side], linewidth=2, label=None if index else label_of(side))
    ax.set_title(f"Reward over wall time in seconds (mean of {RUNNING_MEAN} steps)", loc="left", color=INK)
    ax.set_ylim(0, 1.02)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.legend(frameon=False, labelcolor=INK)


def label_of(side: str) -> str:
    return "TRL" if side == "trl" else f"headrace, {side}"


def bars(ax: Axes, groups: list[str], values: Mapping[str, list[float]]) -> None:
    """One cluster a group, one bar a series."""
    width = 0.8 / len(values)
    for index, (name, heights) in enumerate(values.items()):
        places = [place + (index - (len(values) - 1) / 2) * width for place in range(len(groups))]
        drawn = ax.bar(places, heights, width * 0.92, color=COLORS[name], label=name)
        ax.bar_label(drawn, fmt="{:,.3g}" if max(heights) < 100 else "{:,.0f}", fontsize=8, color=INK)
    ax.set_xticks(range(len(groups)), groups)
    ax.legend(frameon=False, labelcolor=INK)


CHARTS: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], Callable[[Axes, Mapping[str, Any]], None]]] = {
    "decode": (lambda result: "tokens_per_second" in result, draw_decode),
    "training": (lambda result: "prompts" in result, draw_training),
    "end_to_end": (lambda result: "sides" in result, draw_rewards),
}
