"""docs/losses.md: its code prints what it says, its numbers are right, and it leaves nothing out."""

import contextlib
import io
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
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


OF_SEQUENCE = [0, 1, 1, 1, 2, 2, 3, 3, 3, 3]
LENGTHS = [OF_SEQUENCE.count(number) for number in range(4)]
TOKENS = range(10)
TokenLoss = Callable[[float, float, float], float]
"""From ratio, log-probability and advantage."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An algorithm on the example's tokens, in plain Python."""

    advantages: list[float]
    """Of tokens, or of the four sequences."""
    token_loss: TokenLoss
    weight: Callable[[int], float]
    """Of a token, the denominator in it."""
    proximal: list[float]
    """log π_prox of each token."""
    factors: list[float]
    """Of each token's loss, without gradient: what corrects for the sampler, or leaves it out."""
    whole_sequences: bool = False

    def loss(self, logprobs: list[float]) -> float:
        advantages = self.advantages if len(self.advantages) == 10 else [self.advantages[number] for number in OF_SEQUENCE]
        differences = [now - then for now, then in zip(logprobs, self.proximal, strict=True)]
        if self.whole_sequences:
            means = [sum(differences[t] for t in TOKENS if OF_SEQUENCE[t] == number) / LENGTHS[number] for number in range(4)]
            differences = [means[number] for number in OF_SEQUENCE]
        losses = (self.token_loss(math.exp(differences[t]), logprobs[t], advantages[t]) for t in TOKENS)
        return sum(self.weight(t) * self.factors[t] * loss for t, loss in enumerate(losses))

    def gradient(self, logprobs: list[float], step: float = 1e-6) -> list[float]:
        """By central differences."""

        def moved(token: int, by: float) -> float:
            return self.loss([value + by * (place == token) for place, value in enumerate(logprobs)])

        return [(moved(token, step) - moved(token, -step)) / (2 * step) for token in TOKENS]


def clipped(low: float, high: float) -> TokenLoss:
    return lambda ratio, logprob, advantage: -min(ratio * advantage, min(max(ratio, low), high) * advantage)


def gated(ratio: float, logprob: float, advantage: float) -> float:
    tau = 1.0 if advantage > 0 else 1.05
    return -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage


def nearest(distances: list[float], threshold: float) -> list[float]:
    """1 for tokens that are trusted: the farthest is left out until the mean is small enough."""
    trusted = sorted(TOKENS, key=distances.__getitem__)
    while sum(distances[t] for t in trusted) / len(trusted) > threshold:
        trusted.pop()
    return [float(t in trusted) for t in TOKENS]


def references(probability: dict[str, list[float]]) -> dict[str, Reference]:
    behaviour, start, now, teacher = (list(map(math.log, probability[who])) for who in ("behaviour", "start", "now", "teacher"))
    siblings = [(1.0, 0.0), (1.0, 0.25)]

    def scaled(groups: list[tuple[float, float]]) -> list[float]:
        return [(r - statistics.fmean(group)) / (statistics.stdev(group) + 1e-4) for group in groups for r in group]

    of_tokens = [[1.0, 0.0, 1.0, 0.25][number] for number in OF_SEQUENCE]
    whitened = [(r - statistics.fmean(of_tokens)) / math.sqrt(statistics.pvariance(of_tokens) + 1e-8) for r in of_tokens]
    group = scaled(siblings)
    plain = {"proximal": behaviour, "factors": [1.0] * 10}
    tokens, sequences, constant = (lambda t: 1 / 10), (lambda t: 1 / LENGTHS[OF_SEQUENCE[t]] / 4), (lambda t: 1 / 16)
    clip, importance, reinforce = clipped(0.8, 1.2), (lambda r, logprob, a: -r * a), (lambda r, logprob, a: -a * logprob)
    # The ratio weighs, but has no gradient.
    cut_ratios = [min(math.exp(near - far), 5.0) for near, far in zip(now, behaviour, strict=True)]
    interpolated = [b + (1 - 1 / d) * (p - b) for b, p, d in zip(behaviour, now, [2] * 4 + [1] * 6, strict=True)]

    def decoupled(proximal: list[float]) -> dict[str, list[float]]:
        weights = [math.exp(near - far) for near, far in zip(proximal, behaviour, strict=True)]
        return {"proximal": proximal, "factors": [weight if weight <= 5 else 0.0 for weight in weights]}

    trusted = nearest([(near - far) ** 2 for near, far in zip(start, behaviour, strict=True)], 0.04)
    return {
        "grpo": Reference(advantages=group, token_loss=clip, weight=sequences, **plain),
        "dr_grpo": Reference(advantages=[0.5, -0.5, 0.375, -0.375], token_loss=clip, weight=constant, **plain),
        # The answer of four tokens is as long as it may be.
        "dapo": Reference(advantages=scaled([(1.0, 0.0), (1.0, -0.75)]), token_loss=clipped(0.8, 1.28), weight=tokens, **plain),
        "gspo": Reference(advantages=group, token_loss=clipped(1 - 3e-4, 1 + 4e-4), weight=sequences, whole_sequences=True, **plain),
        "cispo": Reference(advantages=group, token_loss=reinforce, weight=tokens, proximal=behaviour, factors=cut_ratios),
        "sapo": Reference(advantages=group, token_loss=gated, weight=sequences, **plain),
        "m2po": Reference(advantages=group, token_loss=importance, weight=tokens, proximal=behaviour, factors=trusted),
        "rloo": Reference(advantages=[1.0, -1.0, 0.75, -0.75], token_loss=reinforce, weight=constant, **plain),
        "reinforce_pp": Reference(advantages=whitened, token_loss=clip, weight=tokens, **plain),
        # Baselines (1 · 1 + 3 · 0) / 4 and (2 · 1 + 4 · 0.25) / 6.
        "opo": Reference(advantages=[0.75, -0.25, 0.5, -0.25], token_loss=reinforce, weight=constant, **plain),
        "ppo": Reference(advantages=[r - 0.5 for r in of_tokens], token_loss=clip, weight=tokens, **plain),
        "areal": Reference(advantages=group, token_loss=clip, weight=tokens, **decoupled(start)),
        "a3po": Reference(advantages=group, token_loss=clip, weight=tokens, **decoupled(interpolated)),
        "distill": Reference(
            advantages=[far - near for near, far in zip(behaviour, teacher, strict=True)], token_loss=importance, weight=tokens, **plain
        ),
    }


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_loss_and_gradient_of_the_example_are_those_of_plain_python(names: dict[str, Any], name: str) -> None:
    reference, now = references(names["probability"])[name], list(map(math.log, names["probability"]["now"]))
    loss, gradient = names["trained"](name)
    assert loss == pytest.approx(reference.loss(now), abs=2e-6)
    assert gradient == pytest.approx(reference.gradient(now), abs=2e-6)


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
