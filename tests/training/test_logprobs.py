from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.training import logprobs
from headrace.training.gradients import CastWeight
from headrace.training.logprobs import OutputHead, logprob_gradients, score_tokens

POSITION_OF_TOKEN = torch.tensor([0, 0, 0, 1, 2, 4, 4, 6])
TOKEN_IDS = torch.tensor([3, 3, 10, 0, 5, 1, 2, 10])


def heads() -> dict[str, OutputHead]:
    torch.manual_seed(0)
    weight, bias = torch.randn(11, 5, requires_grad=True), torch.randn(11, requires_grad=True)
    return {
        "plain": OutputHead(weight=weight, bias=None, scale=1.0, softcap=None),
        "bias": OutputHead(weight=weight, bias=bias, scale=1.0, softcap=None),
        "softcap": OutputHead(weight=weight, bias=None, scale=1.0, softcap=2.0),
        "scale": OutputHead(weight=weight, bias=bias, scale=0.25, softcap=None),
        "scale and softcap": OutputHead(weight=weight, bias=bias, scale=0.5, softcap=3.0),
    }


def tokens(head: OutputHead, temperature: float, *, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Which ones to score, and how: what all functions are given beside hidden states and head."""
    cast_weight = CastWeight(head.weight, dtype)
    return {"position_of_token": POSITION_OF_TOKEN, "token_ids": TOKEN_IDS, "temperature": temperature, "cast_weight": cast_weight}


def naive(hidden: Tensor, head: OutputHead, temperature: float) -> tuple[Tensor, Tensor]:
    logits = hidden @ head.weight.T
    logits = (logits if head.bias is None else logits + head.bias) * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    table = torch.log_softmax(logits / temperature, dim=-1)
    entropies = -(table.exp() * table).sum(-1)
    return table[POSITION_OF_TOKEN, TOKEN_IDS], entropies[POSITION_OF_TOKEN]


@pytest.mark.parametrize("chunk_elements", [1, 25, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", list(heads()))
def test_chunks_give_what_a_full_log_softmax_gives(
    name: str, temperature: float, chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "MAX_BLOCK_LOGITS", chunk_elements)
    head = heads()[name]
    hidden = torch.randn(7, 5, requires_grad=True)
    leaves = [hidden, head.weight] + ([] if head.bias is None else [head.bias])
    upstream, upstream_entropy = torch.randn(8), torch.randn(8)

    scores = score_tokens(hidden, head, **tokens(head, temperature))
    expected_logprobs, expected_entropies = naive(hidden, head, temperature)

    torch.testing.assert_close(scores.logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.entropies, expected_entropies, rtol=1e-5, atol=1e-5)
    for objective, reference in (
        ((scores.logprobs * upstream).sum(), (expected_logprobs * upstream).sum()),
        ((scores.entropies * upstream_entropy).sum(), (expected_entropies * upstream_entropy).sum()),
        (
            (scores.logprobs * upstream + scores.entropies * upstream_entropy).sum(),
            (expected_logprobs * upstream + expected_entropies * upstream_entropy).sum(),
        ),
    ):
        wanted = torch.autograd.grad(reference, leaves, retain_graph=True)
        for leaf in leaves:
            leaf.grad = None
        objective.backward(retain_graph=True)
        for leaf, expected in zip(leaves, wanted, strict=True):
            torch.testing.assert_close(leaf.grad, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_products_keep_float32_results_and_gradients() -> None:
    head = heads()["plain"]
    hidden = torch.randn(7, 5, requires_grad=True)
    scores = score_tokens(hidden, head, **tokens(head, 1.0, dtype=torch.bfloat16))
    scores.logprobs.sum().backward()
    assert scores.logprobs.dtype == torch.float32
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.float32
    torch.testing.assert_close(scores.logprobs, naive(hidden, head, 1.0)[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("chunk_elements", [1, 25, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", list(heads()))
def test_gradients_of_single_tokens(name: str, temperature: float, chunk_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "MAX_BLOCK_LOGITS", chunk_elements)
    head, hidden = heads()[name], torch.randn(7, 5, requires_grad=True)
    found = logprob_gradients(hidden, head, **tokens(head, temperature))
    of_tokens, _ = naive(hidden, head, temperature)
    for token, position in enumerate(POSITION_OF_TOKEN):
        (expected,) = torch.autograd.grad(of_tokens[token], hidden, retain_graph=True)
        torch.testing.assert_close(found[token], expected[position], rtol=1e-4, atol=1e-5)
    assert head.weight.grad is None
