import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.kl import k1, k2, k3, unbiased_kl
from headrace.algorithms.token_advantages import reverse_kl_advantages


def policies():
    """Logits of p and of q over three tokens."""
    return torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64), torch.tensor([-0.5, 0.8, 0.1], dtype=torch.float64)


def kl(p_logprobs, q_logprobs):
    return (p_logprobs.exp() * (p_logprobs - q_logprobs)).sum()


def expected_gradient(estimator):
    """E_p of the estimator's gradient through log p alone, by enumeration: what training with it as a loss follows."""
    p_logits, q_logits = policies()
    p_logits.requires_grad_()
    logprobs = p_logits.log_softmax(-1)
    (logprobs.detach().exp() * estimator(logprobs, q_logits.log_softmax(-1))).sum().backward()
    return p_logits.grad


def true_gradient(divergence):
    p_logits, q_logits = policies()
    p_logits.requires_grad_()
    divergence(p_logits.log_softmax(-1), q_logits.log_softmax(-1)).backward()
    return p_logits.grad


def test_values_by_hand():
    log_p, log_q = torch.tensor([-1.0]), torch.tensor([-3.0])  # x = log q - log p = -2
    assert k1(log_p, log_q).item() == pytest.approx(2.0)
    assert k2(log_p, log_q).item() == pytest.approx(2.0)
    assert k3(log_p, log_q).item() == pytest.approx(1.1353, abs=5e-5)


def test_k1_and_k3_are_unbiased_as_values_and_k2_is_not():
    p, q = (logits.log_softmax(-1) for logits in policies())
    exact = kl(p, q).item()
    assert (p.exp() * k1(p, q)).sum().item() == pytest.approx(exact, rel=1e-12)
    assert (p.exp() * k3(p, q)).sum().item() == pytest.approx(exact, rel=1e-12)
    assert (p.exp() * k2(p, q)).sum().item() != pytest.approx(exact, rel=1e-2)


def test_as_losses_k1_teaches_nothing_k2_the_reverse_and_k3_the_forward_divergence():
    assert expected_gradient(k1).tolist() == pytest.approx([0.0] * 3, abs=1e-15)
    torch.testing.assert_close(expected_gradient(k2), true_gradient(kl))
    torch.testing.assert_close(expected_gradient(k3), true_gradient(lambda p, q: kl(q, p)))


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_off_the_reward_the_policy_gradient_is_that_of_the_expected_estimate_held_fixed(estimator):
    """The number goes into the advantage, so only the probability of meeting it moves; for k1 that is ∇ KL(p ‖ q)."""
    p_logits, q_logits = policies()
    p_logits.requires_grad_()
    p = p_logits.log_softmax(-1)
    penalties = estimator(p, q_logits.log_softmax(-1)).detach()
    advantages = -penalties
    (policy_gradient,) = torch.autograd.grad((p.detach().exp() * -advantages * p).sum(), p_logits, retain_graph=True)
    (held,) = torch.autograd.grad((p.exp() * penalties).sum(), p_logits)
    torch.testing.assert_close(policy_gradient, held)
    assert torch.allclose(policy_gradient, true_gradient(kl)) == (estimator is k1)


@given(st.floats(-200.0, 0.0), st.floats(-200.0, 0.0))
def test_k2_and_k3_are_finite_and_never_negative(log_p, log_q):
    for estimator in (k2, k3):
        value = estimator(torch.tensor([log_p]), torch.tensor([log_q])).item()
        assert value >= 0.0
        assert math.isfinite(value)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_gradients_agree_with_finite_differences(estimator):
    log_p = torch.tensor([-0.1, -1.0, -4.0], dtype=torch.float64, requires_grad=True)
    log_q = torch.tensor([-0.5, -1.0, -2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda logprobs: estimator(logprobs, log_q), (log_p,))


def third_policy():
    return torch.tensor([0.7, 0.2, -1.1], dtype=torch.float64).log_softmax(-1)


def test_the_unbiased_estimator_is_it_in_value_and_gradient_whoever_sampled():
    """E under another sampler of (p / sampler) · k3, enumerated."""
    p_logits, q_logits = policies()
    p_logits.requires_grad_()
    p, q, sampler = p_logits.log_softmax(-1), q_logits.log_softmax(-1), third_policy()
    expected = (sampler.exp() * unbiased_kl(p, q, sampler)).sum()
    torch.testing.assert_close(expected, kl(p, q))
    (gradient,) = torch.autograd.grad(expected, p_logits)
    torch.testing.assert_close(gradient, true_gradient(kl))


def test_without_the_weight_a_stale_sampler_bends_k3():
    p_logits, q_logits = policies()
    p, q, sampler = p_logits.log_softmax(-1), q_logits.log_softmax(-1), third_policy()
    assert (sampler.exp() * k3(p, q)).sum().item() != pytest.approx(kl(p, q).item(), rel=1e-2)


def test_a_teachers_advantages_have_the_policy_gradient_of_the_divergence():
    """-E_p[A ∇ log p] with A from the teacher is ∇ KL(p ‖ teacher), where k1 as a loss has an expected gradient of 0."""
    p_logits, teacher_logits = policies()
    p_logits.requires_grad_()
    p, teacher = p_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    advantages = torch.from_numpy(reverse_kl_advantages(p.detach().numpy(), teacher.numpy(), coefficient=1.0))
    loss = -(p.detach().exp() * advantages * p).sum()
    (gradient,) = torch.autograd.grad(loss, p_logits)
    torch.testing.assert_close(gradient, true_gradient(kl), rtol=1e-5, atol=1e-7)
    assert gradient.tolist() == pytest.approx([0.0679, -0.2604, 0.1924], abs=1e-4)


def test_the_unbiased_estimators_gradient_agrees_with_finite_differences():
    log_p = torch.tensor([-0.1, -1.0, -4.0], dtype=torch.float64, requires_grad=True)
    log_q, sampler = torch.tensor([-0.5, -1.0, -2.0]).double(), torch.tensor([-0.4, -0.9, -3.0]).double()
    assert torch.autograd.gradcheck(lambda logprobs: unbiased_kl(logprobs, log_q, sampler), (log_p,))
