"""One-digit additions as chat prompts: the task of the end-to-end benchmarks."""

import json
import random
from collections.abc import Sequence
from pathlib import Path


def addition_rows(*, few_shot: int, seed: int) -> list[dict[str, object]]:
    """All 81 additions of 1 to 9, in a random order; `few_shot` solved examples before each lengthen its prompt."""
    draw = random.Random(seed)
    rows = [_row(a, b, _examples(few_shot, draw)) for a in range(1, 10) for b in range(1, 10)]
    draw.shuffle(rows)
    return rows


def write_rows(rows: Sequence[dict[str, object]], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _examples(count: int, draw: random.Random) -> str:
    pairs = [(draw.randint(1, 9), draw.randint(1, 9)) for _ in range(count)]
    return "".join(f"What is {a} + {b}? {a + b}\n" for a, b in pairs)


def _row(a: int, b: int, examples: str) -> dict[str, object]:
    question = f"{examples}What is {a} + {b}? Answer with just the result."
    return {"prompt": [{"role": "user", "content": question}], "answer": str(a + b)}
