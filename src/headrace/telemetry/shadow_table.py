"""What `[shadow]` found in a run: means over its steps, and a table of them."""

from collections.abc import Mapping

from rich.table import Table

_PREFIX = "shadow/"
_STALENESS = "gradient_cosine/staleness_"
_TITLE = (
    "what other algorithms would have made of the same batches\n(cosine with the applied gradient: of all tokens, and of one staleness)"
)

ShadowSums = dict[str, list[float]]
"""Sum, and number of steps, by metric: JSON values."""
ShadowMeans = Mapping[str, Mapping[str, float]]
"""By algorithm and metric."""


def add_shadow_metrics(sums: ShadowSums, metrics: Mapping[str, float]) -> None:
    """Add a step's metrics `shadow/<algorithm>/<metric>` up; others are left alone."""
    for name, value in metrics.items():
        if name.startswith(_PREFIX):
            total, steps = sums.get(name, [0.0, 0])
            sums[name] = [total + value, steps + 1]


def shadow_means(sums: ShadowSums) -> dict[str, dict[str, float]]:
    """Mean of each metric over the steps that have it, and `steps`: over how many at most, fewer for what a resumed run has added."""
    means: dict[str, dict[str, float]] = {}
    for name, (total, steps) in sums.items():
        label, _, metric = name.removeprefix(_PREFIX).partition("/")
        of_algorithm = means.setdefault(label, {"steps": 0})
        of_algorithm["steps"] = max(of_algorithm["steps"], steps)
        of_algorithm[metric] = total / steps
    return means


def shadow_table(means: ShadowMeans) -> Table:
    """One line an algorithm, the applied one first; cosines by staleness where a step had tokens of several."""
    stalenesses = sorted({int(name.removeprefix(_STALENESS)) for of in means.values() for name in of if name.startswith(_STALENESS)})
    table = Table(title=_TITLE, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("algorithm", "steps", "kept", "ess", "clipped", "cosine", *(f"cosine {each}" for each in stalenesses)):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    names = ("steps", "kept", "ess", "clip_ratio", "gradient_cosine", *(f"{_STALENESS}{each}" for each in stalenesses))
    for label, of_algorithm in means.items():
        table.add_row(label, *(_shown(name, of_algorithm.get(name)) for name in names))
    return table


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "steps":
        return f"{value:.0f}"
    return f"{value:.3f}" if name.startswith(("ess", "gradient")) else f"{100 * value:.1f} %"
