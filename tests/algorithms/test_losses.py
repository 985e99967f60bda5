import math
from dataclasses import fields, replace
from functools import partial
from itertools import product

import pytest
import torch
from algorithms.token_losses import (
    CORRECTIONS,
    LENGTHS,
    LEVELS,
    SURROGATES,
    gradient_of,
    random_proximal,
    random_tokens,
    slow_loss,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.corrections import token_masked, token_truncated
from headrace.algorithms.kl import k2, k3, unbiased_kl
from headrace.algorithms.losses import LossTokens, kl_loss, policy_loss
from headrace.algorithms.normalisers import BatchCounts, ConstantLength, SequenceMean, TokenMean
from headrace.algorithms.proximal import loglinear_proximal_logprobs

COMBINATIONS = [pytest.param(*names, id="-".join(names)) for names in product(SURROGATES, CORRECTIONS, LEVELS)]
every_combination = pytest.mark.parametrize(("surrogate", "correction", "level"), COMBINATIONS)
ESTIMATORS = {
    "k2": lambda logprobs, reference, _: k2(logprobs, reference),
    "k3": lambda logprobs, reference, _: k3(logprobs, reference),
    "unbiased": unbiased_kl,
}


def loss_with(tokens, proximal, surrogate="clip", correction="none", level="token", **more):
    parts = {"surrogate": SURROGATES[surrogate], "correction": CORRECTIONS[correction], "level": LEVELS[level]}
    return policy_loss(tokens, proximal_logprobs=proximal, **parts, **more)


@every_combination
def test_every_composition_equals_the_slow_reference(surrogate, correction, level):
    for seed in range(3):
        tokens = random_tokens(seed)
        proximal = random_proximal(tokens)
        loss = loss_with(tokens, proximal, surrogate, correction, level)
        expected = slow_loss(tokens, proximal, surrogate=surrogate, correction=correction, level=level)
        assert loss.loss_sum.item() == pytest.approx(expected, rel=1e-10)


@every_combination
def test_gradients_agree_with_finite_differences(surrogate, correction, level):
    """CISPO's ratio is held fixed, and so is every behaviour weight."""
    tokens = random_tokens(7, lengths=(2, 4, 3))
    proximal = random_proximal(tokens)

    def loss_of(some):
        return loss_with(some, proximal, surrogate, correction, level).loss_sum

    _, gradient = gradient_of(loss_of, tokens)
    frozen = loss_with(tokens, proximal, surrogate, correction, level)

    def slow(logprobs):
        if surrogate != "cispo":
            return loss_of(replace(tokens, logprobs=logprobs))
        factors = tokens.weights * frozen.behaviour_weights * frozen.ratio.clamp(max=1.5) * -tokens.advantages
        return torch.where(frozen.kept, factors * logprobs, 0.0).sum()

    step = 1e-6
    for index in range(len(tokens.mask)):
        nudge = torch.zeros_like(tokens.logprobs)
        nudge[index] = step
        slope = (slow(tokens.logprobs + nudge) - slow(tokens.logprobs - nudge)).item() / (2 * step)
        assert gradient[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@every_combination
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
def test_masked_positions_change_neither_value_nor_gradient(surrogate, correction, level, garbage):
    tokens = random_tokens(11)
    proximal = random_proximal(tokens)
    spoiled = torch.full_like(tokens.logprobs, garbage)
    names = ("logprobs", "behaviour_logprobs", "advantages", "weights")
    dirty = replace(tokens, **{name: torch.where(tokens.mask, getattr(tokens, name), spoiled) for name in names})
    dirty_proximal = torch.where(tokens.mask, proximal, spoiled)
    clean_loss, clean_gradient = gradient_of(lambda some: loss_with(some, proximal, surrogate, correction, level).loss_sum, tokens)
    loss, gradient = gradient_of(lambda some: loss_with(some, dirty_proximal, surrogate, correction, level).loss_sum, dirty)
    torch.testing.assert_close(loss, clean_loss, rtol=0, atol=0)
    torch.testing.assert_close(gradient, clean_gradient, rtol=0, atol=0)
    assert gradient[~tokens.mask].eq(0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
def test_masked_positions_change_nothing_in_the_kl_term(estimator, garbage):
    tokens = random_tokens(11)
    reference = random_proximal(tokens)
    spoiled = torch.full_like(tokens.logprobs, garbage)
    names = ("logprobs", "behaviour_logprobs", "weights")
    dirty = replace(tokens, **{name: torch.where(tokens.mask, getattr(tokens, name), spoiled) for name in names})
    clean = gradient_of(lambda some: kl_loss(some, reference_logprobs=reference, estimator=estimator), tokens)
    spoiled_reference = torch.where(tokens.mask, reference, spoiled)
    torch.testing.assert_close(
        gradient_of(lambda some: kl_loss(some, reference_logprobs=spoiled_reference, estimator=estimator), dirty), clean, rtol=0, atol=0
    )


@every_combination
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_far_apart_policies_stay_finite(surrogate, correction, level, advantage):
    """A stale token at log-probability -100 that is now at -1 would be e^99, infinite in float32."""
    tokens = LossTokens(
        logprobs=torch.tensor([-1.0, -100.0]),
        behaviour_logprobs=torch.tensor([-100.0, -1.0]),
        advantages=torch.full((2,), advantage),
        weights=torch.ones(2),
        mask=torch.ones(2, dtype=torch.bool),
        sequence_index=torch.arange(2),
    )
    for proximal in (tokens.behaviour_logprobs, torch.tensor([-1.0, -100.0])):
        loss, gradient = gradient_of(lambda some, p=proximal: loss_with(some, p, surrogate, correction, level).loss_sum, tokens)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@every_combination
@pytest.mark.parametrize("spoiled", ["logprobs", "advantages", "behaviour_logprobs"])
def test_nan_at_a_token_that_counts_shows_in_the_loss(surrogate, correction, level, spoiled):
    tokens = replace(random_tokens(0), mask=torch.ones(24, dtype=torch.bool))
    values = getattr(tokens, spoiled).clone()
    values[3] = math.nan
    proximal = random_proximal(tokens, distance=0.02)
    loss = loss_with(replace(tokens, **{spoiled: values}), proximal, surrogate, correction, level)
    if spoiled == "behaviour_logprobs" and correction == "none":
        assert loss.loss_sum.isfinite()  # The sampler is not looked at.
    else:
        assert loss.loss_sum.isnan()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_at_ratio_1_every_surrogate_has_the_gradient_of_reinforce(surrogate):
    tokens = random_tokens(4)
    _, gradient = gradient_of(lambda some: loss_with(some, tokens.logprobs, surrogate).loss_sum, tokens)
    torch.testing.assert_close(gradient, torch.where(tokens.mask, -tokens.weights * tokens.advantages, 0.0))


@pytest.mark.parametrize("surrogate", ["clip", "dual_clip", "sapo", "importance"])
def test_at_ratio_1_sequences_with_one_advantage_have_that_gradient_too(surrogate):
    tokens = random_tokens(4)
    sequence_advantages = torch.randn(len(LENGTHS), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = SequenceMean().token_weights(tokens.sequence_index, tokens.mask).double()
    tokens = replace(tokens, advantages=sequence_advantages[tokens.sequence_index], weights=mean)
    _, gradient = gradient_of(lambda some: loss_with(some, tokens.logprobs, surrogate, level="sequence").loss_sum, tokens)
    torch.testing.assert_close(gradient, torch.where(tokens.mask, -tokens.weights * tokens.advantages, 0.0), rtol=1e-6, atol=1e-8)


def test_sequence_ratios_equal_their_token_form():
    """GSPO's sequence objective against sg(s_i) · π / sg(π) of every token, with the mean over sequences of token means."""
    tokens = random_tokens(3, lengths=(2, 8), distance=0.1)
    weights = SequenceMean().token_weights(tokens.sequence_index, tokens.mask).double()
    tokens = replace(tokens, weights=weights, advantages=torch.tensor([1.0, -2.0])[tokens.sequence_index].double())
    _, gradient = gradient_of(lambda some: loss_with(some, tokens.behaviour_logprobs, level="sequence").loss_sum, tokens)
    means = tokens.sequences.means(tokens.logprobs - tokens.behaviour_logprobs).exp()
    _, expected = gradient_of(
        lambda some: torch.where(some.mask, -some.weights * means * (some.logprobs - tokens.logprobs).exp() * some.advantages, 0.0).sum(),
        tokens,
    )
    torch.testing.assert_close(gradient, expected)


def test_the_denominator_decides_what_a_long_sequence_weighs():
    """Lengths 2 and 8 with GSPO: by sequences each pulls the same in total, by tokens the long one four times as much."""
    tokens = replace(random_tokens(3, lengths=(2, 8), distance=0.0), advantages=torch.ones(10, dtype=torch.float64))
    tokens = replace(tokens, mask=torch.ones(10, dtype=torch.bool))
    for normaliser, share in ((SequenceMean(), 1.0), (TokenMean(), 4.0)):
        weighed = replace(tokens, weights=normaliser.token_weights(tokens.sequence_index, tokens.mask).double())
        _, gradient = gradient_of(lambda some: loss_with(some, tokens.behaviour_logprobs, level="sequence").loss_sum, weighed)
        assert gradient[2:].sum().item() / gradient[:2].sum().item() == pytest.approx(share)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_decoupled_is_ordinary_where_the_sampler_is_the_proximal_policy(surrogate, correction):
    tokens = random_tokens(9)
    losses = [
        gradient_of(lambda some, chosen=chosen: loss_with(some, tokens.behaviour_logprobs, surrogate, chosen).loss_sum, tokens)
        for chosen in ("none", correction)
    ]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=0)


def test_interpolated_proximal_policy_is_held_fixed_in_the_gradient():
    """Inside the clip range the gradient of an interpolated token is that of plain importance sampling, -w A."""
    tokens = tokens_of([math.exp(0.1), math.exp(-0.2)], [1.0, -2.0])

    def loss_of(some):
        proximal = loglinear_proximal_logprobs(some.logprobs, some.behaviour_logprobs, torch.tensor([4, 2]))
        return loss_with(some, proximal, correction="mis").loss_sum

    _, gradient = gradient_of(loss_of, tokens)
    assert gradient.tolist() == pytest.approx([-math.exp(0.1), 2 * math.exp(-0.2)], rel=1e-12)


def test_at_the_proximal_policy_the_gradient_is_the_importance_weighted_policy_gradient():
    """AReaL's Eq. 5 at π_θ = π_prox against E_behave[(π_θ / π_behave) A ∇ log π_θ], both enumerated over a vocabulary of 4."""
    generator = torch.Generator().manual_seed(3)
    logits, behaviour_logits, advantages = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    logprobs, behaviour = logits.log_softmax(-1), behaviour_logits.log_softmax(-1)
    tokens = LossTokens(
        logprobs=logprobs,
        behaviour_logprobs=behaviour,
        advantages=advantages,
        weights=behaviour.exp(),
        mask=torch.ones(4, dtype=torch.bool),
        sequence_index=torch.arange(4),
    )
    unbounded = partial(token_truncated, low=0.0, high=1e6)
    loss = policy_loss(tokens, proximal_logprobs=logprobs, surrogate=SURROGATES["clip"], correction=unbounded).loss_sum
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (expected,) = torch.autograd.grad((logprobs.exp() * advantages).sum(), logits)
    torch.testing.assert_close(gradient, -expected)


@settings(deadline=None, max_examples=60)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 5),
    st.sampled_from([TokenMean(), SequenceMean(), ConstantLength(max_completion_length=8)]),
    st.sampled_from([combination.values for combination in COMBINATIONS]),
)
def test_any_split_and_order_of_the_sequences_gives_the_same_gradient(random, num_parts, normaliser, combination):
    tokens = random_tokens(5)
    counts = BatchCounts(loss_tokens=int(tokens.mask.sum()), sequences=len(LENGTHS))
    proximal = random_proximal(tokens)

    def gradient_over(batches):
        logprobs = tokens.logprobs.clone().requires_grad_()
        for sequences in batches:
            where = [torch.where(tokens.sequence_index == sequence)[0] for sequence in sequences]
            index = torch.repeat_interleave(torch.arange(len(where)), torch.tensor([len(each) for each in where]))
            chosen = torch.cat(where)
            part = LossTokens(**{field.name: getattr(tokens, field.name)[chosen] for field in fields(tokens)})
            weights = normaliser.token_weights(index, part.mask)
            part = replace(part, logprobs=logprobs[chosen], sequence_index=index, weights=weights)
            loss_with(part, proximal[chosen], *combination).loss_sum.backward()
        return logprobs.grad / normaliser.denominator(counts)

    order = random.sample(range(len(LENGTHS)), len(LENGTHS))
    batches = [order[start::num_parts] for start in range(num_parts)]
    torch.testing.assert_close(gradient_over(batches), gradient_over([list(range(len(LENGTHS)))]), rtol=1e-12, atol=1e-14)


def test_what_a_token_went_through_by_hand():
    tokens = LossTokens(
        logprobs=torch.tensor([1.0, 0.5, 0.5, 1.0, 3.0, 2.0]).log() - 5,
        behaviour_logprobs=torch.tensor([1.0, 1.0, 1.0, 1 / 6, 1 / 6, 1.0]).log() - 5,
        advantages=torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0]),
        weights=torch.ones(6),
        mask=torch.tensor([True, True, True, True, True, False]),
        sequence_index=torch.zeros(6, dtype=torch.long),
    )
    proximal = torch.tensor([0.5, 1.0, 1.0, 1.0, 1.0, 1.0]).log() - 5
    parts = {"surrogate": SURROGATES["clip"], "correction": partial(token_masked, low=0.0, high=5.0)}
    loss = policy_loss(tokens, proximal_logprobs=proximal, **parts)
    assert loss.ratio.tolist()[:5] == pytest.approx([2.0, 0.5, 0.5, 1.0, 3.0])
    assert loss.behaviour_weights.tolist()[:5] == pytest.approx([0.5, 1.0, 1.0, 0.0, 0.0])
    assert loss.kept.tolist() == [True, True, True, False, False, False]
    # The fifth token's ratio is beyond the clip too, but it is left out; the sixth is masked.
    assert loss.clipped_high.tolist() == [True, False, False, False, False, False]
    assert loss.clipped_low.tolist() == [False, True, False, False, False, False]
    assert loss.loss_sum.item() == pytest.approx(0.5 * -1.28 + 0.8 - 0.5)
    flipped = policy_loss(replace(tokens, logprobs=proximal - 1, advantages=-tokens.advantages), proximal_logprobs=proximal, **parts)
    assert flipped.clipped_low.tolist() == [True, False, True, False, False, False]


def test_tokens_that_are_not_trusted_are_left_out():
    tokens = tokens_of([1.1, 1.0, 0.9], [1.0, 1.0, 1.0], mask=[True, True, False])
    trusted = torch.tensor([False, True, True])
    loss = loss_with(tokens, tokens.behaviour_logprobs, "importance", trusted=trusted)
    assert loss.kept.tolist() == [False, True, False]
    assert loss.loss_sum.item() == pytest.approx(-1.0)
    _, gradient = gradient_of(lambda some: loss_with(some, some.behaviour_logprobs, "importance", trusted=trusted).loss_sum, tokens)
    assert gradient.tolist() == [0.0, pytest.approx(-1.0), 0.0]


def test_a_group_without_signal_is_still_pulled_to_the_reference():
    tokens = replace(random_tokens(2), advantages=torch.zeros(24, dtype=torch.float64))
    policy_loss_sum, policy_gradient = gradient_of(lambda some: loss_with(some, some.behaviour_logprobs).loss_sum, tokens)
    assert policy_loss_sum.item() == 0.0
    assert policy_gradient.eq(0).all()
    _, pull = gradient_of(lambda some: kl_loss(some, reference_logprobs=tokens.behaviour_logprobs, estimator=ESTIMATORS["k3"]), tokens)
    x = tokens.behaviour_logprobs - tokens.logprobs
    torch.testing.assert_close(pull, torch.where(tokens.mask, tokens.weights * (1 - x.exp()), 0.0))


def test_clipping_stops_a_token_and_only_where_it_moves_away():
    tokens = tokens_of([2.0, 0.5, 2.0, 0.5], [1.0, 1.0, -1.0, -1.0])
    _, gradient = gradient_of(lambda some: loss_with(some, some.behaviour_logprobs).loss_sum, tokens)
    assert gradient.tolist() == pytest.approx([0.0, -0.5, 2.0, 0.0])
