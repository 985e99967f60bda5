"""Numbers, texts and tables as people read them."""

import unicodedata
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Seconds in two units at most: `8.4 s`, `3 min 07 s`, `2 h 05 min`, `3 d 4 h`."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    return f"{hours} h {minute:02d} min" if hours else f"{minute} min {second:02d} s"


def count(number: float) -> str:
    """A count with three significant digits: `950`, `12.3k`, `4.56M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def share(part: float) -> str:
    """A share of one as a percentage: `7 %`."""
    return f"{100 * part:.0f} %"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as a line of blocks, from the lowest of them to the highest."""
    shown = values[-width:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    steps = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * steps)] for value in shown)


def printable(text: str) -> str:
    """A foreign text without control characters, which could garble the terminal."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\t"


def facts_table(facts: Iterable[tuple[str, Text]]) -> Table:
    """One line a fact, under its name."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    return table
