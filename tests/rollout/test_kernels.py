"""The kernels against torch's operations in float32, on the same bfloat16 numbers."""

import pytest
import torch
import torch.nn.functional as F

from headrace.rollout.kernels import Kernels, load_kernels

SIZE, SIBLINGS, KEY_HEADS = 16, 3, 2
KERNELS = load_kernels(head_size=SIZE, siblings=SIBLINGS)
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no C compiler here")


def kernels() -> Kernels:
    assert KERNELS is not None
    return KERNELS


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 40, 1500])
def test_rms_norm(rows: int):
    torch.manual_seed(0)
    inputs, weight = random(rows, 50) * 3, random(50)
    expected = F.rms_norm(inputs.float(), (50,), weight.float(), 1e-5)
    torch.testing.assert_close(kernels().rms_norm(inputs, weight, 1e-5).float(), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("tokens", [2, 20])
def test_queries_and_keys_are_rotated_and_keys_and_values_written(tokens: int):
    torch.manual_seed(0)
    heads = random(tokens, KEY_HEADS * (SIBLINGS + 2), SIZE)
    angles = torch.rand(tokens, SIZE // 2).repeat(1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    first, second = heads[:, :-KEY_HEADS].float().chunk(2, dim=-1)
    turned = heads[:, :-KEY_HEADS].float() * cos.float()[:, None] + torch.cat((-second, first), dim=-1) * sin.float()[:, None]
    expected = torch.cat((turned, heads[:, -KEY_HEADS:].float()), dim=1)
    cache, rows = torch.zeros(tokens + 5, 2, KEY_HEADS, SIZE, dtype=torch.bfloat16), torch.arange(tokens).flip(0) + 3
    kernels().rotate_and_write(heads, cos, sin, cache, rows)
    torch.testing.assert_close(heads.float(), expected, atol=0.03, rtol=0.01)
    assert cache[rows].equal(heads[:, -2 * KEY_HEADS :].unflatten(1, (2, KEY_HEADS)))
    assert cache[:3].count_nonzero() == 0
    assert cache[tokens + 3 :].count_nonzero() == 0


SPANS = [[(0, 5), (20, 1)], [(0, 0), (7, 3)], [(3, 150), (160, 70)], [(0, 64), (230, 0)]]


@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["ordinary", "large scores"])
def test_attention_over_two_stretches(scale: float):
    torch.manual_seed(0)
    cache = random(240, 2, KEY_HEADS, SIZE)
    heads = random(len(SPANS), KEY_HEADS * (SIBLINGS + 2), SIZE) * scale
    queries = heads[:, : KEY_HEADS * SIBLINGS]
    found = kernels().attend(queries, cache, torch.tensor(SPANS), 0.3)
    for token, spans in enumerate(SPANS):
        seen = torch.cat([cache[first : first + number] for first, number in spans]).float().repeat_interleave(SIBLINGS, dim=2)
        scores = torch.einsum("hs,khs->hk", queries[token].float(), seen[:, 0]) * 0.3
        expected = torch.einsum("hk,khs->hs", scores.softmax(-1), seen[:, 1])
        torch.testing.assert_close(found[token].float(), expected, atol=0.02, rtol=0.02)


def test_several_threads_compute_the_same():
    torch.manual_seed(0)
    cache, queries = random(300, 2, KEY_HEADS, SIZE), random(33, KEY_HEADS * SIBLINGS, SIZE)
    spans = torch.tensor([[(0, 40), (token, 60 + token)] for token in range(33)])
    before = torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(kernels().attend(queries, cache, spans, 0.25))
    torch.set_num_threads(before)
    assert found[0].equal(found[1])
