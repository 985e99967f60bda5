import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout.tiny_models import sampling
from scipy.stats import chisquare

from headrace.rollout.sampling import counter_uniforms, draw_tokens
from headrace.types import Sampling

LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.5, -3.0, 0.7, 1.1, -0.2, 0.3, -0.8, 1.9])


def expected_probabilities(logits: list[float], how: Sampling) -> list[float]:
    """Temperature, then top-k, then top-p, one token at a time."""
    weights = {token: math.exp(logit / how.temperature) for token, logit in enumerate(logits)}
    by_likelihood = sorted(weights, key=lambda token: -weights[token])
    kept = by_likelihood[: how.top_k or len(logits)]
    mass, nucleus = 0.0, []
    for token in kept:
        if mass < how.top_p:
            nucleus.append(token)
        mass += weights[token] / sum(weights[other] for other in kept)
    total = sum(weights[token] for token in nucleus)
    return [weights[token] / total if token in nucleus else 0.0 for token in range(len(logits))]


@pytest.mark.parametrize(
    "how",
    [sampling(), sampling(temperature=0.5), sampling(temperature=1.7), sampling(top_k=4), sampling(top_p=0.8),
     sampling(temperature=1.3, top_k=7, top_p=0.85)],
)  # fmt: skip
def test_frequencies_and_logprobs_are_those_of_the_cut_distribution(how: Sampling):
    draws = 20_000
    uniforms = counter_uniforms([7] * draws, [0] * draws, list(range(draws)))
    tokens, logprobs = draw_tokens(LOGITS.expand(draws, -1), [how] * draws, uniforms)
    expected = np.array(expected_probabilities(LOGITS.tolist(), how))
    counts = np.bincount(tokens, minlength=len(LOGITS))
    assert not counts[expected == 0].any()
    assert chisquare(counts[expected > 0], expected[expected > 0] * draws).pvalue > 1e-3
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), atol=1e-5)


def test_greedy_takes_the_likeliest_and_reports_temperature_one():
    tokens, logprobs = draw_tokens(LOGITS[None], [sampling(temperature=0)], np.array([0.999]))
    assert tokens == [0]
    assert logprobs[0] == pytest.approx(LOGITS.log_softmax(-1)[0].item(), abs=1e-6)


@pytest.mark.parametrize("vocabulary", [49_152, 151_936])
def test_a_large_vocabulary_is_inverted_to_within_a_millionth(vocabulary: int):
    logits = torch.randn(16, vocabulary, generator=torch.Generator().manual_seed(0)) * 2
    uniforms = counter_uniforms([3] * 16, list(range(16)), [0] * 16)
    tokens, logprobs = draw_tokens(logits, [sampling()] * 16, uniforms)
    exact = logits.double().softmax(-1)
    after = exact.cumsum(-1)
    for row, token in enumerate(tokens):
        assert after[row, token] - exact[row, token] - 1e-6 < uniforms[row] < after[row, token] + 1e-6
        assert logprobs[row] == pytest.approx(exact[row, token].log().item(), abs=1e-5)


def test_unlikely_tokens_keep_their_share_of_a_large_vocabulary():
    """A float32 running sum over 151k entries would lose the small steps after the first large one."""
    logits = torch.full((1, 151_936), -12.0)
    logits[0, 0] = 0.0
    draws = 400
    tokens, _ = draw_tokens(logits.expand(draws, -1), [sampling()] * draws, (np.arange(draws) + 0.5) / draws)
    mass = math.exp(-12)
    exact = [max(0, int((uniform * (1 + 151_935 * mass) - 1) / mass) + 1) for uniform in (np.arange(draws) + 0.5) / draws]
    np.testing.assert_allclose(tokens, exact, atol=2)


@given(
    st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=600),
    st.sampled_from([0.0, 2.0**-53, 0.25, 0.5, 1 - 2.0**-53]),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 5),
    st.sampled_from([0.1, 0.9, 1.0]),
)
def test_a_drawn_token_is_possible(logits: list[float], uniform: float, temperature: float, top_k: int, top_p: float):
    how = sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    (token,), (logprob,) = draw_tokens(torch.tensor([logits]), [how], np.array([uniform]))
    assert 0 <= token < len(logits)
    assert -200 < logprob <= 1e-6


def test_rows_do_not_depend_on_their_neighbours():
    logits = torch.randn(21, 300, generator=torch.Generator().manual_seed(1))
    how = [sampling(temperature=0.7), sampling(top_k=3), sampling(temperature=0)] * 7
    uniforms = counter_uniforms(list(range(21)), [0] * 21, [0] * 21)
    together = draw_tokens(logits, how, uniforms)
    alone = [draw_tokens(logits[row : row + 1], how[row : row + 1], uniforms[row : row + 1]) for row in range(21)]
    assert together[0] == [tokens[0] for tokens, _ in alone]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in alone])


def splitmix(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_uniforms_are_nested_splitmix64():
    assert splitmix(0) == 0xE220A8397B1DCDAF, "the published first output of seed 0"
    for seed, rollout, position in [(0, 0, 0), (12345, 3, 77), (2**64 - 1, 0, 5), (-1, 0, 5), (2**70 + 9, 1, 1)]:
        bits = splitmix(splitmix(splitmix(seed % 2**64) ^ rollout) ^ position)
        assert counter_uniforms([seed], [rollout], [position])[0] == (bits >> 11) / 2**53


def test_uniforms_are_uniform_along_every_counter():
    numbers = list(range(20_000))
    zeros = [0] * len(numbers)
    for counters in [(numbers, zeros, zeros), (zeros, numbers, zeros), (zeros, zeros, numbers)]:
        uniforms = counter_uniforms(*counters)
        assert chisquare(np.histogram(uniforms, bins=64, range=(0, 1))[0]).pvalue > 1e-3
        assert abs(np.corrcoef(uniforms[:-1], uniforms[1:])[0, 1]) < 0.03
