"""The compiled draw against exact sums in float64, and against torch's draw of the same bfloat16 logits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout.tiny_models import sampling

from headrace.rollout.drawing import Draw, load_draw
from headrace.rollout.sampling import counter_uniforms, draw_tokens

DRAW = load_draw()
pytestmark = pytest.mark.skipif(DRAW is None, reason="no C compiler here")


def draw() -> Draw:
    assert DRAW is not None
    return DRAW


def random_logits(rows: int, vocabulary: int) -> torch.Tensor:
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 2).bfloat16()


@pytest.mark.parametrize("vocabulary", [1, 256, 300, 49_152, 151_936])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_the_distribution_is_inverted_to_within_a_millionth(vocabulary: int, temperature: float):
    logits, uniforms = random_logits(16, vocabulary), counter_uniforms([3] * 16, list(range(16)), [0] * 16)
    tokens, logprobs = draw()(logits, [temperature] * 16, uniforms)
    exact = (logits.double() / temperature).softmax(-1)
    after = exact.cumsum(-1)
    for row, token in enumerate(tokens):
        assert after[row, token] - exact[row, token] - 1e-6 < uniforms[row] < after[row, token] + 1e-6
        assert logprobs[row] == pytest.approx(exact[row, token].log().item(), abs=1e-5)


def test_rows_are_drawn_as_torch_draws_them():
    logits, uniforms = random_logits(60, 3000), counter_uniforms([5] * 60, list(range(60)), [0] * 60)
    how = [sampling(), sampling(temperature=0.7), sampling(top_k=5), sampling(temperature=1.3, top_p=0.4), sampling(temperature=0)] * 12
    tokens, logprobs = draw_tokens(logits, how, uniforms)
    expected = draw_tokens(logits.float(), how, uniforms)
    assert tokens == expected[0]
    assert logprobs == pytest.approx(expected[1], abs=1e-5)
    assert logits.isfinite().all(), "cutting a row off must not change the caller's logits"


def test_greedy_takes_the_first_of_the_likeliest():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]]).bfloat16()
    tokens, logprobs = draw()(logits, [0.0, 0.0], np.array([0.9, 0.9]))
    assert tokens == [1, 0]
    assert logprobs == pytest.approx(logits.double().log_softmax(-1)[[0, 1], tokens].tolist(), abs=1e-6)


@given(
    st.lists(st.floats(-60, 60, width=16), min_size=1, max_size=600),
    st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-53]),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 5),
)
def test_a_drawn_token_is_possible(logits: list[float], uniform: float, temperature: float, top_k: int):
    how = sampling(temperature=temperature, top_k=top_k)
    (token,), (logprob,) = draw_tokens(torch.tensor([logits]).bfloat16(), [how], np.array([uniform]))
    assert 0 <= token < len(logits)
    assert -200 < logprob <= 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_distribution_is_an_error(bad: float):
    logits = random_logits(3, 500)
    logits[1, 77] = bad
    with pytest.raises(ValueError, match="logits of 1 of 3 rows are NaN or infinite"):
        draw()(logits, [1.0] * 3, np.full(3, 0.5))


def test_several_threads_draw_the_same():
    logits, uniforms = random_logits(33, 2000), np.linspace(0, 0.999, 33)
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(draw()(logits, [1.0] * 33, uniforms))
    torch.set_num_threads(before)
    assert found[0] == found[1]
