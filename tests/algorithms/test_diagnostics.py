import math
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.corrections import token_masked
from headrace.algorithms.diagnostics import measure
from headrace.algorithms.losses import LossTokens, policy_loss
from headrace.algorithms.surrogates import clipped

CLIP = partial(clipped, epsilon=0.2, epsilon_high=0.2)


def tokens_of(importance, advantages=None, mask=None):
    count = len(importance)
    return LossTokens(
        logprobs=torch.tensor(importance).log() - 3,
        behaviour_logprobs=torch.full((count,), -3.0),
        advantages=torch.ones(count) if advantages is None else torch.tensor(advantages),
        weights=torch.ones(count),
        mask=torch.ones(count, dtype=torch.bool) if mask is None else torch.tensor(mask),
        sequence_index=torch.zeros(count, dtype=torch.long),
    )


def ordinary_loss(tokens):
    return policy_loss(tokens, proximal_logprobs=tokens.behaviour_logprobs, surrogate=CLIP)


def metrics_of(tokens, staleness=None):
    staleness = torch.zeros(len(tokens.mask), dtype=torch.int32) if staleness is None else torch.tensor(staleness)
    return measure(tokens, ordinary_loss(tokens), staleness=staleness).metrics()


def test_metrics_by_hand():
    metrics = metrics_of(tokens_of([0.5, 2.0, 1.0, 0.5, 9.0], [-1.0, 1.0, 1.0, 1.0, 1.0], [True, True, True, True, False]), [0, 4, 1, 3, 0])
    assert metrics["clip_ratio/low_mean"] == 0.25
    assert metrics["clip_ratio/high_mean"] == 0.25
    assert metrics["clip_ratio/region_mean"] == 0.5
    assert metrics["ess"] == pytest.approx(4.0**2 / (4 * (0.25 + 4.0 + 1.0 + 0.25)))
    # trainer / engine = 0.5: r - 1 - log r of the only token of the trainer's own version
    assert metrics["mismatch_kl"] == pytest.approx(0.5 - 1 + math.log(2), rel=1e-5)


def test_the_cap_shows_in_the_weights_and_not_in_the_effective_sample_size():
    tokens = tokens_of([8.0, 1.0, 1.0], mask=[True, True, False])
    correction = partial(token_masked, low=0.0, high=5.0)
    capped = policy_loss(tokens, proximal_logprobs=tokens.logprobs, surrogate=CLIP, correction=correction)
    metrics = measure(tokens, capped, staleness=torch.tensor([2, 2, 2])).metrics()
    assert metrics["behaviour_weight/beyond_cap"] == 0.5
    assert metrics["behaviour_weight/mean"] == pytest.approx(0.5)
    assert metrics["ess"] == pytest.approx(81 / (2 * 65))


def test_equal_policies_show_no_mismatch_and_a_full_sample():
    metrics = metrics_of(tokens_of([1.0] * 6))
    assert metrics["mismatch_kl"] == 0.0
    assert metrics["ess"] == 1.0


def test_the_mismatch_is_absent_without_tokens_of_the_own_version_and_all_is_without_tokens():
    assert "mismatch_kl" not in metrics_of(tokens_of([1.0, 1.0]), [1, 2])
    assert metrics_of(tokens_of([1.0, 1.0], mask=[False, False])) == {}
    assert metrics_of(tokens_of([])) == {}


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_effective_sample_size_is_a_share_and_one_only_for_equal_ratios(importance):
    ess = metrics_of(tokens_of(importance))["ess"]
    assert 0.0 < ess <= 1.0 + 1e-6
    if max(importance) > 1.1 * min(importance):
        assert ess < 1.0


@given(st.integers(1, 9))
def test_totals_of_parts_add_up_to_the_total_of_the_whole(cut):
    importance = [0.5, 2.0, 1.0, 0.7, 1.4, 0.3, 1.1, 3.0, 0.9, 1.0]
    whole = tokens_of(importance, [(-1.0) ** index for index in range(10)])
    staleness = torch.arange(10) % 3
    parts = [
        (replace(whole, **{field.name: getattr(whole, field.name)[where] for field in fields(whole)}), staleness[where])
        for where in (slice(None, cut), slice(cut, None))
    ]
    first, second = (measure(part, ordinary_loss(part), staleness=ages) for part, ages in parts)
    assert (first + second).metrics() == pytest.approx(measure(whole, ordinary_loss(whole), staleness=staleness).metrics(), rel=1e-6)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_masked_positions_do_not_count(garbage):
    dirty = replace(tokens_of([0.5, 2.0, 1.0], mask=[True, True, False]), logprobs=torch.tensor([-3.7, -2.3, garbage]))
    clean = replace(dirty, logprobs=torch.tensor([-3.7, -2.3, 0.0]))
    assert metrics_of(dirty) == metrics_of(clean)
