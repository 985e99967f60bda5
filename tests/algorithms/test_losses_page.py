"""docs/losses.md: its code prints what it says, its numbers are right, and it leaves nothing out."""

import contextlib
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.config.algorithm import AlgorithmSection
from headrace.config.named_algorithms import NAMED_ALGORITHMS
from headrace.config.problems import models_at, type_of

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page's code defines, after it has printed what the page says."""
    assert len(EXAMPLES) == 2
    defined: dict[str, Any] = {}
    for code, expected in EXAMPLES:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, defined)
        assert printed.getvalue() == expected
    return defined


def test_the_worked_example_prints_what_the_page_says_for_every_name(names: dict[str, Any]) -> None:
    assert [line.split()[0] for line in EXAMPLES[1][1].splitlines()] == list(NAMED_ALGORITHMS)


def clipped(ratio: float, advantage: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 0.8), high) * advantage)


def test_losses_of_the_example_by_hand(names: dict[str, Any]) -> None:
    """Without the project's functions: ratios to the sampler 1.25 | 0.8 0.9 1.1 | 1.0 1.6 | 1.0 0.9 1.0 1.2."""
    sequences = [[1.25], [0.8, 0.9, 1.1], [1.0, 1.6], [1.0, 0.9, 1.0, 1.2]]
    first, second = 0.5 / (math.sqrt(0.5) + 1e-4), 0.375 / (0.375 * math.sqrt(2) + 1e-4)
    advantages = [first, -first, second, -second]
    by_sequence = [
        sum(clipped(ratio, advantage, 1.2) for ratio in ratios) / len(ratios)
        for ratios, advantage in zip(sequences, advantages, strict=True)
    ]
    assert names["trained"]("grpo")[0] == pytest.approx(sum(by_sequence) / 4, rel=1e-4)
    gspo = [
        -min((s := math.prod(ratios) ** (1 / len(ratios))) * a, min(max(s, 1 - 3e-4), 1 + 4e-4) * a)
        for ratios, a in zip(sequences, advantages, strict=True)
    ]
    assert names["trained"]("gspo")[0] == pytest.approx(sum(gspo) / 4, rel=1e-3, abs=1e-5)
    dapo_second = 0.875 / (0.875 * math.sqrt(2) + 1e-4)
    dapo = [
        sum(clipped(ratio, advantage, 1.28) for ratio in ratios)
        for ratios, advantage in zip(sequences, [first, -first, dapo_second, -dapo_second], strict=True)
    ]
    assert names["trained"]("dapo")[0] == pytest.approx(sum(dapo) / 10, rel=1e-4)
    now = [0.625, 0.4, 0.45, 0.55, 0.5, 0.8, 0.5, 0.45, 0.5, 0.6]
    rloo = [1.0, -1.0, -1.0, -1.0, 0.75, 0.75, -0.75, -0.75, -0.75, -0.75]
    expected = -sum(advantage * math.log(probability) for advantage, probability in zip(rloo, now, strict=True)) / 16
    assert names["trained"]("rloo")[0] == pytest.approx(expected, rel=1e-5)


def test_the_tables_have_every_name_and_every_type() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    first_cells = " ".join(row.split("|")[1] for row in rows)
    assert all(f"`{name}`" in first_cells for name in NAMED_ALGORITHMS)
    for part in ("advantage", "correction", "surrogate"):
        for model in models_at(("algorithm", part)):
            assert f"`{type_of(model)}`" in first_cells
    for key in ("denominator", "kl_estimator"):
        for choice in AlgorithmSection.model_fields[key].annotation.__args__:
            assert f"`{choice}`" in first_cells


def test_every_function_that_a_table_names_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "src" / "headrace").rglob("*.py"))
    for header in ("| type | formula | function", "| key | formula | function", "| type, level | factor"):
        assert header in TEXT
    tables = TEXT[TEXT.index("## Advantages") : TEXT.index("## Refused")]
    named = re.findall(
        r"`([a-z_]+_(?:advantages|masked|truncated|penalty|ratios|logprobs|kept|distance)|clipped|dual_clipped|reinforce)`", tables
    )
    assert len(set(named)) > 20
    assert [name for name in named if f"def {name}(" not in sources] == []
