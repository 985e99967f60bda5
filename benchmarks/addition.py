"""Additions as chat prompts: the task of the end-to-end benchmarks."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NUM_HELD_OUT = 65
"""One more than is evaluated on: headrace draws held-out rows from a file, and leaves at least one of it."""

Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class AdditionRows:
    """Every addition once, with a random choice of them held out."""

    train: Sequence[Row]
    held_out: Sequence[Row]


def addition_rows(*, few_shot: int, seed: int) -> AdditionRows:
    """The 144 additions of 1 to 12; `few_shot` solved examples before each lengthen its prompt."""
    rows = additions(range(1, 13), few_shot=few_shot, seed=seed)
    return AdditionRows(train=rows[NUM_HELD_OUT:], held_out=rows[:NUM_HELD_OUT])


def additions(numbers: Sequence[int], *, few_shot: int, seed: int) -> list[Row]:
    """Each number plus each, in a random order."""
    draw = random.Random(seed)
    rows = [_row(a, b, _examples(few_shot, numbers, draw)) for a in numbers for b in numbers]
    draw.shuffle(rows)
    return rows


def write_rows(rows: Sequence[Row], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _examples(count: int, numbers: Sequence[int], draw: random.Random) -> str:
    pairs = [(draw.choice(numbers), draw.choice(numbers)) for _ in range(count)]
    return "".join(f"What is {a} + {b}? {a + b}\n" for a, b in pairs)


def _row(a: int, b: int, examples: str) -> Row:
    question = f"{examples}What is {a} + {b}? Answer with just the result."
    return {"prompt": [{"role": "user", "content": question}], "answer": str(a + b)}
