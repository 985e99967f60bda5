import torch

from headrace.rollout.place_cache import DecodedToken, PlaceCache, Segment, Step

CPU = torch.device("cpu")


def step(decoded: list[tuple[int, int]], segments: list[tuple[int, int, int]] = ()) -> Step:
    """Decoded tokens as (place, position), segments as (place, start, number of tokens)."""
    return Step(
        [DecodedToken(place=place, position=position, token=1) for place, position in decoded],
        [Segment(place=place, start=start, tokens=[1] * count) for place, start, count in segments],
        device=CPU,
        dtype=torch.float32,
    )


def visible(mask: torch.Tensor) -> list[list[int]]:
    return (mask == 0).int().reshape(-1, mask.shape[-1]).tolist()


def test_a_decoded_token_sees_its_place_up_to_itself():
    assert visible(step([(0, 3), (1, 1)]).decode_mask(None)) == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_a_window_counts_the_token_itself():
    assert visible(step([(0, 3), (1, 1)]).decode_mask(2)) == [[0, 0, 1, 1], [1, 1, 0, 0]]


def test_a_place_without_a_decoded_token_still_sees_something():
    masked = step([(2, 2)])
    assert not masked.decodes_every_place
    assert visible(masked.decode_mask(None)) == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]


def test_a_segment_sees_what_came_before_it():
    stepped = step([], [(4, 2, 2)])
    assert visible(stepped.segment_mask(stepped.segments[0], None)) == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert visible(stepped.segment_mask(stepped.segments[0], 2)) == [[0, 1, 1, 0], [0, 0, 1, 1]]


def states(first: float, count: int) -> torch.Tensor:
    """[1, 2 heads, tokens, head size 1]: the values first, first + 1, …, the second head's negated."""
    row = torch.arange(count).float() + first
    return torch.stack([row, -row])[None, :, :, None]


def test_tokens_are_written_to_their_places_and_survive_growth_and_copying():
    cache = PlaceCache(3)
    cache.begin(step([(1, 0)], [(0, 0, 3)]))
    keys, values = cache.update(states(10, 4), states(20, 4), layer_idx=0)
    assert keys[0, :3, 0, 0].tolist() == [11, 12, 13]
    assert values[1, 0, :, 0].tolist() == [20, -20]
    cache.begin(step([(1, 700)]))
    grown, _ = cache.update(states(99, 1), states(99, 1), layer_idx=0)
    assert grown.shape[1] > 700
    assert grown[0, :4, 1, 0].tolist() == [-11, -12, -13, 0]
    assert grown[1, 700, 0, 0] == 99
    cache.copy(source=0, target=2, length=2)
    assert grown[2, :3, 0, 0].tolist() == [11, 12, 0]
