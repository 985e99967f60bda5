import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.losses import LossTokens, decoupled_ppo_loss, kl_loss, ppo_loss
from headrace.algorithms.normalisers import BatchCounts, ConstantLength, SequenceMean, TokenMean
from headrace.algorithms.proximal import clamped_behaviour_weights, loglinear_proximal_logprobs, masked_behaviour_weights

CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
MASK_AT_5 = partial(masked_behaviour_weights, cap=5.0)
CLAMP_AT_5 = partial(clamped_behaviour_weights, cap=5.0)


def random_tokens(seed, count=24, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    behaviour = -3 * torch.rand(count, dtype=dtype, generator=generator)
    return LossTokens(
        logprobs=behaviour + 0.4 * torch.randn(count, dtype=dtype, generator=generator),
        behaviour_logprobs=behaviour,
        advantages=torch.randn(count, dtype=dtype, generator=generator),
        weights=torch.rand(count, dtype=dtype, generator=generator),
        mask=torch.rand(count, generator=generator) < 0.8,
    )


def random_proximal(tokens, seed=100):
    generator = torch.Generator().manual_seed(seed)
    return tokens.behaviour_logprobs + torch.randn(len(tokens.mask), dtype=tokens.logprobs.dtype, generator=generator)


def slow_decoupled_loss(tokens, proximal_logprobs, cap, beyond_cap):
    """AReaL's Eq. 5 token by token, in plain Python."""
    total = 0.0
    for index in range(len(tokens.mask)):
        if not tokens.mask[index]:
            continue
        theta, proximal = math.exp(tokens.logprobs[index]), math.exp(proximal_logprobs[index])
        behaviour, advantage = math.exp(tokens.behaviour_logprobs[index]), float(tokens.advantages[index])
        ratio, weight = theta / proximal, proximal / behaviour
        if weight > cap:
            weight = {"mask": 0.0, "clamp": cap}[beyond_cap]
        objective = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        total -= float(tokens.weights[index]) * weight * objective
    return total


def gradient_of(loss_of, tokens):
    logprobs = tokens.logprobs.clone().requires_grad_()
    loss = loss_of(replace(tokens, logprobs=logprobs))
    loss.backward()
    return loss.detach(), logprobs.grad


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("capped_weights", "beyond_cap"), [(MASK_AT_5, "mask"), (CLAMP_AT_5, "clamp")])
def test_decoupled_loss_equals_the_slow_reference(seed, capped_weights, beyond_cap):
    tokens = random_tokens(seed)
    proximal = random_proximal(tokens) + 0.8
    assert ((proximal - tokens.behaviour_logprobs).exp() > 5).any()
    loss = decoupled_ppo_loss(tokens, proximal_logprobs=proximal, capped_weights=capped_weights, **CLIP)
    assert loss.loss_sum.item() == pytest.approx(slow_decoupled_loss(tokens, proximal, 5.0, beyond_cap), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_loss_equals_the_slow_reference_and_the_decoupled_one_at_the_samplers_policy(seed):
    tokens = random_tokens(seed)
    ordinary = ppo_loss(tokens, **CLIP)
    assert ordinary.loss_sum.item() == pytest.approx(slow_decoupled_loss(tokens, tokens.behaviour_logprobs, 5.0, "mask"), rel=1e-12)
    decoupled = decoupled_ppo_loss(tokens, proximal_logprobs=tokens.behaviour_logprobs, capped_weights=MASK_AT_5, **CLIP)
    torch.testing.assert_close(ordinary.loss_sum, decoupled.loss_sum)


def losses_under_test(tokens, reference, staleness=2):
    staleness = torch.as_tensor(staleness)
    frozen = loglinear_proximal_logprobs(tokens.logprobs, tokens.behaviour_logprobs, staleness)
    decoupled = partial(decoupled_ppo_loss, capped_weights=MASK_AT_5, **CLIP)
    return [
        lambda some: ppo_loss(some, **CLIP).loss_sum,
        lambda some: decoupled(some, proximal_logprobs=reference).loss_sum,
        lambda some: decoupled(some, proximal_logprobs=frozen).loss_sum,
        lambda some: kl_loss(some, reference_logprobs=reference),
    ]


@pytest.mark.parametrize("which", range(4))
def test_gradients_agree_with_finite_differences(which):
    tokens = random_tokens(7, count=12)
    loss_of = losses_under_test(tokens, random_proximal(tokens))[which]
    _, gradient = gradient_of(loss_of, tokens)
    step = 1e-6
    for index in range(len(tokens.mask)):
        nudge = torch.zeros_like(tokens.logprobs)
        nudge[index] = step
        rise = loss_of(replace(tokens, logprobs=tokens.logprobs + nudge)) - loss_of(replace(tokens, logprobs=tokens.logprobs - nudge))
        assert gradient[index].item() == pytest.approx(rise.item() / (2 * step), rel=1e-6, abs=1e-8)


def test_interpolated_proximal_policy_is_held_fixed_in_the_gradient():
    """Inside the clip range the gradient of an interpolated token is that of plain importance sampling, -w A."""
    tokens = LossTokens(
        logprobs=torch.tensor([-1.0, -2.0], dtype=torch.float64),
        behaviour_logprobs=torch.tensor([-1.1, -1.8], dtype=torch.float64),
        advantages=torch.tensor([1.0, -2.0]),
        weights=torch.ones(2),
        mask=torch.ones(2, dtype=torch.bool),
    )

    def loss_of(some):
        proximal = loglinear_proximal_logprobs(some.logprobs, some.behaviour_logprobs, torch.tensor([4, 2]))
        return decoupled_ppo_loss(some, proximal_logprobs=proximal, capped_weights=MASK_AT_5, **CLIP).loss_sum

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
    )
    uncapped = partial(clamped_behaviour_weights, cap=1e6)
    loss = decoupled_ppo_loss(tokens, proximal_logprobs=logprobs, capped_weights=uncapped, **CLIP).loss_sum
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (expected,) = torch.autograd.grad((logprobs.exp() * advantages).sum(), logits)
    torch.testing.assert_close(gradient, -expected)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, -1e30])
@pytest.mark.parametrize("which", range(4))
def test_masked_positions_change_neither_value_nor_gradient(which, garbage):
    tokens = random_tokens(11)
    reference = random_proximal(tokens)
    spoiled = torch.full_like(tokens.logprobs, garbage)
    dirty = {
        name: torch.where(tokens.mask, getattr(tokens, name), spoiled)
        for name in ("logprobs", "behaviour_logprobs", "advantages", "weights")
    }
    clean_loss, clean_gradient = gradient_of(losses_under_test(tokens, reference)[which], tokens)
    dirty_tokens = replace(tokens, **dirty)
    dirty_reference = torch.where(tokens.mask, reference, spoiled)
    loss, gradient = gradient_of(losses_under_test(dirty_tokens, dirty_reference)[which], dirty_tokens)
    torch.testing.assert_close(loss, clean_loss, rtol=0, atol=0)
    torch.testing.assert_close(gradient, clean_gradient, rtol=0, atol=0)
    assert gradient[~tokens.mask].eq(0).all()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("which", range(4))
def test_far_apart_policies_stay_finite(which, advantage):
    """A stale token at log-probability -100 that is now at -1 would be e^99, infinite in float32."""
    tokens = LossTokens(
        logprobs=torch.tensor([-1.0, -100.0]),
        behaviour_logprobs=torch.tensor([-100.0, -1.0]),
        advantages=torch.full((2,), advantage),
        weights=torch.ones(2),
        mask=torch.ones(2, dtype=torch.bool),
    )
    loss, gradient = gradient_of(losses_under_test(tokens, torch.tensor([-100.0, -1.0]))[which], tokens)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("capped_weights", [MASK_AT_5, CLAMP_AT_5])
@pytest.mark.parametrize("spoiled", ["logprobs", "behaviour_logprobs", "advantages"])
def test_nan_at_a_token_that_counts_shows_in_the_loss(capped_weights, spoiled):
    tokens = replace(random_tokens(0), mask=torch.ones(24, dtype=torch.bool))
    values = getattr(tokens, spoiled).clone()
    values[3] = math.nan
    loss = decoupled_ppo_loss(
        replace(tokens, **{spoiled: values}), proximal_logprobs=random_proximal(tokens), capped_weights=capped_weights, **CLIP
    )
    assert loss.loss_sum.isnan()


def test_everything_masked_gives_zero_loss_and_zero_gradient():
    tokens = replace(random_tokens(0), mask=torch.zeros(24, dtype=torch.bool))
    for loss_of in losses_under_test(tokens, random_proximal(tokens)):
        loss, gradient = gradient_of(loss_of, tokens)
        assert loss.item() == 0.0
        assert gradient.tolist() == [0.0] * 24


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.sampled_from(["tokens", "sequences", "constant"]), st.integers(0, 3))
def test_any_split_and_order_of_the_sequences_gives_the_same_gradient(random, parts, denominator, which):
    normaliser = {"tokens": TokenMean(), "sequences": SequenceMean(), "constant": ConstantLength(max_completion_length=8)}[denominator]
    lengths = [3, 1, 8, 5, 2, 5]
    sequence_index = torch.repeat_interleave(torch.arange(6), torch.tensor(lengths))
    tokens = replace(random_tokens(5, count=24), weights=None, mask=torch.arange(24) % 7 != 6)
    counts = BatchCounts(loss_tokens=int(tokens.mask.sum()), sequences=6)
    reference, staleness = random_proximal(tokens), torch.arange(24) % 5

    def gradient_over(batches):
        logprobs = tokens.logprobs.clone().requires_grad_()
        for sequences in batches:
            chosen = torch.cat([torch.where(sequence_index == sequence)[0] for sequence in sequences])
            mask = tokens.mask[chosen]
            part = LossTokens(
                logprobs=logprobs[chosen],
                behaviour_logprobs=tokens.behaviour_logprobs[chosen],
                advantages=tokens.advantages[chosen],
                weights=normaliser.token_weights(sequence_index[chosen], mask),
                mask=mask,
            )
            losses_under_test(replace(part, logprobs=part.logprobs.detach()), reference[chosen], staleness[chosen])[which](part).backward()
        return logprobs.grad / normaliser.denominator(counts)

    order = random.sample(range(6), 6)
    batches = [order[start::parts] for start in range(parts)]
    torch.testing.assert_close(gradient_over(batches), gradient_over([list(range(6))]), rtol=1e-12, atol=1e-14)


def test_what_a_token_went_through_by_hand():
    tokens = LossTokens(
        logprobs=torch.tensor([1.0, 0.5, 0.5, 1.0, 3.0, 2.0]).log() - 5,
        behaviour_logprobs=torch.tensor([1.0, 1.0, 1.0, 1 / 6, 1 / 6, 1.0]).log() - 5,
        advantages=torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0]),
        weights=torch.ones(6),
        mask=torch.tensor([True, True, True, True, True, False]),
    )
    proximal = torch.tensor([0.5, 1.0, 1.0, 1.0, 1.0, 1.0]).log() - 5
    loss = decoupled_ppo_loss(tokens, proximal_logprobs=proximal, capped_weights=MASK_AT_5, **CLIP)
    assert loss.ratio.tolist()[:5] == pytest.approx([2.0, 0.5, 0.5, 1.0, 3.0])
    assert loss.behaviour_weights.tolist()[:5] == pytest.approx([0.5, 1.0, 1.0, 0.0, 0.0])
    assert loss.kept.tolist() == [True, True, True, False, False, False]
    # The fifth token's ratio is beyond the clip too, but it is left out; the sixth is masked.
    assert loss.clipped_high.tolist() == [True, False, False, False, False, False]
    assert loss.clipped_low.tolist() == [False, True, False, False, False, False]
    assert loss.loss_sum.item() == pytest.approx(0.5 * -1.28 + 0.8 - 0.5)
    flipped = decoupled_ppo_loss(
        replace(tokens, logprobs=proximal - 1, advantages=-tokens.advantages), proximal_logprobs=proximal, capped_weights=MASK_AT_5, **CLIP
    )
    assert flipped.clipped_low.tolist() == [True, False, True, False, False, False]


def test_a_group_without_signal_is_still_pulled_to_the_reference():
    tokens = replace(random_tokens(2), advantages=torch.zeros(24, dtype=torch.float64))
    policy_loss, policy_gradient = gradient_of(lambda some: ppo_loss(some, **CLIP).loss_sum, tokens)
    assert policy_loss.item() == 0.0
    assert policy_gradient.eq(0).all()
    _, pull = gradient_of(lambda some: kl_loss(some, reference_logprobs=tokens.behaviour_logprobs), tokens)
    x = tokens.behaviour_logprobs - tokens.logprobs
    torch.testing.assert_close(pull, torch.where(tokens.mask, tokens.weights * (1 - x.exp()), 0.0))


def test_clipping_stops_a_token_and_only_where_it_moves_away():
    tokens = LossTokens(
        logprobs=torch.tensor([2.0, 0.5, 2.0, 0.5]).log(),
        behaviour_logprobs=torch.zeros(4),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0]),
        weights=torch.ones(4),
        mask=torch.ones(4, dtype=torch.bool),
    )
    _, gradient = gradient_of(lambda some: ppo_loss(some, **CLIP).loss_sum, tokens)
    assert gradient.tolist() == pytest.approx([0.0, -0.5, 2.0, 0.0])
