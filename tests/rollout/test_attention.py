"""The reference is the definition, token by token: a softmax over the keys that the token's position may see."""

import pytest
import torch
from rollout.test_step import step

from headrace.rollout.attention import AttentionKind, _softmax_attention, attend_step
from headrace.rollout.place_cache import PlaceCache

HEADS, KEY_HEADS, SIZE = 6, 2, 4
KINDS = [AttentionKind(), AttentionKind(scaling=0.3, sliding_window=4), AttentionKind(softcap=1.5), AttentionKind(sliding_window=1)]


def attention_by_definition(query: torch.Tensor, keys_values: torch.Tensor, kind: AttentionKind) -> torch.Tensor:
    """[heads, size] of the last token over keys and values [positions, 2, key heads, size]."""
    seen = keys_values[-kind.sliding_window :] if kind.sliding_window else keys_values
    mixed = []
    for head in range(HEADS):
        keys, values = seen[:, :, head // (HEADS // KEY_HEADS)].unbind(1)
        scores = keys @ query[head] * (kind.scaling or SIZE**-0.5)
        if kind.softcap:
            scores = kind.softcap * (scores / kind.softcap).tanh()
        mixed.append(scores.softmax(0) @ values)
    return torch.stack(mixed)


@pytest.mark.parametrize("kind", KINDS)
def test_decoded_tokens_and_segments_see_prompt_and_completion(kind: AttentionKind):
    torch.manual_seed(0)
    keys_values = torch.randn(13, 2, KEY_HEADS, SIZE)
    cache = PlaceCache(3)

    def written(stepped: object, which: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        cache.begin(stepped)
        return cache.write(0, keys_values[which])

    written(step([], [(1, 5, None, 0, 5), (0, 2, None, 0, 2)]), [0, 1, 2, 3, 4, 0, 1])
    written(step([], [(1, 5, 0, 5, 2), (1, 5, 2, 5, 1)]), [5, 6, 12])
    # Place 0 at position 7 and place 2 at position 6 behind the prompt of 5, place 1 at position 2 behind that of 2; a stretch of a third.
    stepped = step([(0, 1, 5, 7), (1, 0, 2, 2), (2, 1, 5, 6)], [(2, 9, None, 0, 3)])
    queries = torch.randn(6, HEADS, SIZE)
    places, prompts = written(stepped, [7, 8, 9, 0, 1, 2])
    found = attend_step(queries, places, prompts, stepped, kind)
    seen = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 8], [0, 1, 2, 3, 4, 12, 9], [0], [0, 1], [0, 1, 2]]
    for query, which, mixed in zip(queries, seen, found, strict=True):
        torch.testing.assert_close(mixed, attention_by_definition(query, keys_values[which], kind), atol=1e-5, rtol=1e-5)


def test_the_fused_kernel_equals_the_written_out_one():
    torch.manual_seed(0)
    queries, keys, values = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    mask = torch.zeros(2, 1, 5, 7)
    mask[1, :, :, 4:] = torch.finfo(torch.float32).min
    fused = _softmax_attention(queries, keys, values, mask, AttentionKind())
    written_out = _softmax_attention(queries, keys, values, mask, AttentionKind(softcap=1e6))
    for one, other in zip(fused, written_out, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
