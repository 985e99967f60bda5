"""The functions that a recipe's `[algorithm]` chooses, and what they amount to in a training step."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training.policies import batch, gradients, parameters, policy, relative_gap, row, trainer

from headrace.algorithms.corrections import (
    geometric_masked,
    sequence_masked,
    sequence_truncated,
    token_masked,
    token_truncated,
    uncorrected,
)
from headrace.algorithms.losses import LossTokens
from headrace.algorithms.normalisers import ConstantLength, SequenceMean, TokenMean
from headrace.algorithms.ratios import sequence_ratios, token_ratios
from headrace.algorithms.surrogates import cispo, clipped, dual_clipped, importance, reinforce, sapo
from headrace.config.algorithm import AlgorithmSection
from headrace.config.named_algorithms import NAMED_ALGORITHMS
from headrace.config.training import TrainingSection
from headrace.errors import RecipeError
from headrace.training.composition import compose, normaliser_of
from headrace.types import SharedPromptRow

ROWS = (row(5, (3, 1), seed=1), row(2, (6, 2, 4), seed=2), row(7, (2,), seed=3))
PYTHON = {"surrogate": {"type": "python", "function": "a.py:f"}}


def algorithm(**settings: Any) -> AlgorithmSection:
    return AlgorithmSection.model_validate(settings)


def near_policy(rows: tuple[SharedPromptRow, ...], *, distance: float = 0.2) -> tuple[SharedPromptRow, ...]:
    """The rows as a policy near the one of `policy()` would have sampled them, with advantages of their own for each token."""
    made, rng = trainer(policy()), np.random.default_rng(0)
    (collated,) = made._policy.passes(rows)
    logprobs = made._policy.score(collated).logprobs.detach()
    own = iter(logprobs[collated.sample_index == index].numpy() for index in range(collated.num_samples))

    def moved(sample: Any) -> Any:
        values = next(own)
        noise = distance * rng.normal(size=len(values))
        return dataclasses.replace(sample, logprobs=(values + noise).astype(np.float32))

    return tuple(dataclasses.replace(each, samples=tuple(map(moved, each.samples))) for each in rows)


@pytest.mark.parametrize(
    ("settings", "function", "bounds"),
    [
        ({}, clipped, {"epsilon": 0.2, "epsilon_high": 0.2}),
        ({"name": "dapo"}, clipped, {"epsilon": 0.2, "epsilon_high": 0.28}),
        ({"surrogate": {"delta": 3.0}}, dual_clipped, {"epsilon": 0.2, "epsilon_high": 0.2, "delta": 3.0}),
        ({"name": "cispo"}, cispo, {"ratio_cap": 5.0}),
        ({"name": "sapo"}, sapo, {"tau_positive": 1.0, "tau_negative": 1.05}),
    ],
)
def test_surrogates_have_their_settings(settings: dict[str, Any], function: Any, bounds: dict[str, float]) -> None:
    surrogate: Any = compose(algorithm(**settings)).surrogate
    assert (surrogate.func, surrogate.keywords) == (function, bounds)


@pytest.mark.parametrize(("name", "function"), [("m2po", importance), ("distill", importance), ("rloo", reinforce), ("opo", reinforce)])
def test_surrogates_without_settings(name: str, function: Any) -> None:
    assert compose(algorithm(name=name)).surrogate is function


@pytest.mark.parametrize(
    ("correction", "function", "low", "high"),
    [
        ({"type": "tis"}, token_truncated, 0.0, 2.0),
        ({"type": "tis", "level": "sequence", "high": 3.0}, sequence_truncated, 0.0, 3.0),
        ({"type": "mis"}, token_masked, 0.0, 5.0),
        ({"type": "mis", "level": "sequence"}, sequence_masked, 0.0, 5.0),
        ({"type": "mis", "level": "geometric", "low": 0.99, "high": 1.01}, geometric_masked, 0.99, 1.01),
        ({"type": "icepop"}, token_masked, 0.5, 5.0),
    ],
)
def test_corrections_have_their_level_and_bounds(correction: dict[str, Any], function: Any, low: float, high: float) -> None:
    found: Any = compose(algorithm(name="areal", correction=correction)).correction
    assert (found.func, found.keywords) == (function, {"low": low, "high": high})
    assert compose(algorithm()).correction is uncorrected


def test_levels_and_denominators_by_their_names() -> None:
    assert (compose(algorithm()).level, compose(algorithm(name="gspo")).level) == (token_ratios, sequence_ratios)
    chosen = [normaliser_of(algorithm(denominator=name), 8) for name in ("tokens", "sequences", "constant")]
    assert chosen == [TokenMean(), SequenceMean(), ConstantLength(max_completion_length=8)]


def two_tokens() -> LossTokens:
    return LossTokens(
        logprobs=torch.tensor([-1.0, -2.0]),
        behaviour_logprobs=torch.tensor([-1.4, -2.4]),
        advantages=torch.tensor([1.0, -1.0]),
        weights=torch.ones(2),
        mask=torch.ones(2, dtype=torch.bool),
        sequence_index=torch.tensor([0, 1]),
    )


@pytest.mark.parametrize(
    ("name", "start", "ratio"),
    [
        ("grpo", [-1.2, -2.2], [math.exp(0.4)] * 2),
        ("areal", [-1.2, -2.2], [math.exp(0.2)] * 2),
        ("areal", None, [1.0, 1.0]),  # the start's weights are the present ones
        ("a3po", [-1.2, -2.2], [math.exp(0.2), math.exp(0.1)]),  # staleness 2 and 4
    ],
)
def test_the_ratio_is_to_the_chosen_proximal_policy(name: str, start: list[float] | None, ratio: list[float]) -> None:
    start_logprobs = None if start is None else torch.tensor(start)
    loss = compose(algorithm(name=name)).loss(two_tokens(), staleness=torch.tensor([2, 4]), start_logprobs=start_logprobs)
    assert loss.ratio.tolist() == pytest.approx(ratio)
    weights = [math.exp(0.4) / each for each in ratio] if name == "a3po" or start is None else [math.exp(0.2)] * 2
    assert loss.behaviour_weights.tolist() == pytest.approx([1.0, 1.0] if name == "grpo" else weights)


def test_both_reasons_not_to_trust_a_token_count() -> None:
    """The second sequence went wrong and became unlikely; the third token moved farther than the distance."""
    tokens = dataclasses.replace(
        two_tokens(),
        logprobs=torch.tensor([-1.3, -3.4, -1.0]),
        behaviour_logprobs=torch.tensor([-1.4, -2.4, -2.0]),
        advantages=torch.tensor([1.0, -1.0, 1.0]),
        weights=torch.ones(3),
        mask=torch.ones(3, dtype=torch.bool),
        sequence_index=torch.tensor([0, 1, 0]),
    )
    composition = compose(algorithm(name="m2po", off_policy_mask_threshold=0.5))
    kept = [
        composition.loss(tokens, staleness=torch.zeros(3), start_logprobs=None, trusted_distance=distance).kept.tolist()
        for distance in (None, 0.5, 4.0)
    ]
    assert kept == [[True, False, True], [True, False, False], [True, False, True]]


def split(rows: tuple[SharedPromptRow, ...], cut: int) -> list[tuple[SharedPromptRow, ...]]:
    return [part for part in (rows[:cut], rows[cut:]) if part]


@pytest.mark.parametrize(
    "settings",
    [{"name": name} for name in NAMED_ALGORITHMS if name not in ("ppo",)]
    + [
        {"name": "m2po", "surrogate": {"threshold": 0.01}},
        {"name": "areal", "correction": {"type": "mis", "level": "sequence", "low": 0.8, "high": 1.2}},
        {"name": "areal", "correction": {"type": "tis", "level": "sequence"}},
        {"name": "gspo", "off_policy_mask_threshold": 0.05},
    ],
    ids=lambda settings: "-".join(map(str, settings)) + "-" + settings["name"],
)
def test_the_update_does_not_depend_on_the_split_into_micro_batches(settings: dict[str, Any]) -> None:
    rows = near_policy(ROWS)
    training = TrainingSection(learning_rate=1e-3)
    whole = trainer(policy(), algorithm=algorithm(**settings), training=training)
    whole.accumulate(batch(*rows))
    expected = whole.step()
    for cut in (1, 2):
        parts = trainer(policy(), algorithm=algorithm(**settings), training=training)
        for part in reversed(split(rows, cut)):
            parts.accumulate(batch(*part))
        report = parts.step()
        assert report.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
        assert report.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-4, abs=1e-6)
        assert relative_gap(parameters(whole.model), parameters(parts.model)) < 1e-5


def reference_gradient(rows: tuple[SharedPromptRow, ...], loss_of: Any) -> dict[str, Tensor]:
    """Gradient of a loss of (log π, log π_behave, advantages) of each sample, one sequence at a time."""
    model = policy()
    for each in rows:
        for sample in each.samples:
            ids = torch.tensor([*each.prompt_ids, *sample.completion_ids.tolist()])
            table = torch.log_softmax(model(input_ids=ids[None]).logits[0], dim=-1)
            logprobs = table[len(each.prompt_ids) - 1 : -1].gather(1, ids[len(each.prompt_ids) :, None])[:, 0]
            loss_of(logprobs, torch.from_numpy(sample.logprobs), torch.from_numpy(sample.advantages)).backward()
    return gradients(model)


def accumulated(made: Any, rows: tuple[SharedPromptRow, ...]) -> dict[str, Tensor]:
    """What a trainer hands to the optimizer, before the division."""
    found: dict[str, Tensor] = {}
    original = made.optimizer.update

    def update(**arguments: float) -> None:
        found.update(gradients(made.model))
        original(**arguments)

    made.optimizer.update = update
    made.accumulate(batch(*rows))
    made.step()
    return found


def test_gspo_through_the_trainer_is_its_formula() -> None:
    rows = near_policy(ROWS, distance=1e-3)

    def loss_of(logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
        ratio = (logprobs - behaviour).mean().exp()
        return -torch.minimum(ratio * advantages[0], ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantages[0])

    found = accumulated(trainer(policy(), algorithm=algorithm(name="gspo")), rows)
    assert relative_gap(reference_gradient(rows, loss_of), found) < 1e-3


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({}, None),
        ({"name": "m2po"}, 0.0),
        ({"name": "m2po", "surrogate": {"threshold": 1e-9}}, 1.0),
        ({"off_policy_mask_threshold": 9.0}, 0.0),
        ({"name": "areal", "correction": {"type": "icepop", "low": 0.999999, "high": 1.000001}}, 1.0),
    ],
)
def test_how_many_tokens_are_left_out_is_reported_where_any_can_be(settings: dict[str, Any], left_out: float | None) -> None:
    made = trainer(policy(), algorithm=algorithm(**settings))
    made.accumulate(batch(*near_policy(ROWS)))
    assert made.step().metrics.get("behaviour_weight/beyond_cap") == left_out


@pytest.mark.parametrize("threshold", [0.004, 0.02])
def test_m2po_through_the_trainer_is_its_greedy_loop(threshold: float) -> None:
    rows = near_policy(ROWS)
    distances: list[float] = []
    reference_gradient(rows, lambda p, b, a: distances.extend((p - b).square().tolist()) or p.sum() * 0)
    trusted = sorted(distances)
    while sum(trusted) / len(trusted) > threshold:
        trusted.pop()
    assert 0 < len(trusted) < len(distances)

    def loss_of(logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
        near = (logprobs - behaviour).square() <= trusted[-1] * (1 + 1e-3)
        return -((logprobs - behaviour).exp() * advantages * near).sum()

    made = trainer(policy(), algorithm=algorithm(name="m2po", surrogate={"threshold": threshold}))
    assert relative_gap(reference_gradient(rows, loss_of), accumulated(made, rows)) < 1e-3


def without_advantage(row: SharedPromptRow) -> SharedPromptRow:
    return dataclasses.replace(row, samples=tuple(dataclasses.replace(each, advantages=0 * each.advantages) for each in row.samples))


def test_which_tokens_m2po_trusts_does_not_depend_on_what_else_is_computed() -> None:
    """An entropy term that weighs nothing has samples computed that teach nothing."""
    near, far, *others = near_policy(ROWS)
    rows, found = (without_advantage(near), far, *others), []
    for settings in ({}, {"entropy_coefficient": 1e-12}):
        made = trainer(policy(), algorithm=algorithm(name="m2po", surrogate={"threshold": 0.004}, **settings))
        found.append(accumulated(made, rows))
    assert relative_gap(*found) < 1e-6


def test_the_users_surrogate_through_the_trainer() -> None:
    """A pull towards the sampler that does not vanish where the advantage does."""

    def pull(ratio: Tensor, logprobs: Tensor, advantages: Tensor) -> Tensor:
        return -logprobs * advantages + ratio.log().square()

    rows = near_policy(ROWS)
    rows = (without_advantage(rows[0]), *rows[1:])
    made = trainer(policy(), algorithm=algorithm(**PYTHON, denominator="tokens"), token_losses=pull)
    expected = reference_gradient(rows, lambda p, b, a: (-p * a + (p - b).square()).sum())
    assert relative_gap(expected, accumulated(made, rows)) < 1e-4


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda ratio, logprobs, advantages: (ratio * advantages).mean(), r"a tensor of shape \[\] for 18 tokens"),
        (lambda ratio, logprobs, advantages: (ratio * advantages)[None], r"a tensor of shape \[1, 18\] for 18 tokens"),
        (lambda ratio, logprobs, advantages: 0.0, r"a float for 18 tokens"),
    ],
)
def test_what_a_users_surrogate_may_not_return(function: Any, returned: str) -> None:
    made = trainer(policy(), algorithm=algorithm(**PYTHON), token_losses=function)
    with pytest.raises(RecipeError, match=f"algorithm.surrogate.function returned {returned}; it must return the loss of each token"):
        made.accumulate(batch(*ROWS))


def test_a_users_nan_skips_the_update() -> None:
    made = trainer(policy(), algorithm=algorithm(**PYTHON), token_losses=lambda ratio, logprobs, advantages: ratio * math.nan)
    before = parameters(made.model)
    made.accumulate(batch(*ROWS))
    assert made.step().skipped_updates == 1
    assert relative_gap(before, parameters(made.model)) == 0
