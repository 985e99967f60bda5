"""Additions as chat prompts: the task of the end-to-end benchmarks."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

ONE_DIGIT = range(1, 10)

Row = dict[str, object]


def additions(numbers: Sequence[int], *, few_shot: int, seed: int) -> list[Row]:
    """Each number plus each, in a random order; `few_shot` solved examples before each lengthen its prompt."""
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
