import torch
from rollout.test_step import step

from headrace.rollout.place_cache import PlaceCache


def states(first: float, count: int) -> torch.Tensor:
    """[tokens, key and value, 2 heads, head size 1]: keys first, first + 1, …, values a hundred more, the second head's negated."""
    keys = torch.arange(count).float() + first
    pairs = torch.stack([keys, keys + 100], dim=1)
    return torch.stack([pairs, -pairs], dim=-1)[..., None]


def test_tokens_are_written_to_their_places_and_slots_and_survive_growth_and_copying():
    cache = PlaceCache(3)
    cache.begin(step([(1, 0, 3, 3)], [(0, 3, None, 0, 3)]))
    places, prompts = cache.write(0, states(10, 4))
    assert prompts[0, :3, 0, 0, 0].tolist() == [11, 12, 13]
    assert places[1, 0].flatten().tolist() == [10, -10, 110, -110]
    cache.begin(step([(1, 2, 700, 900)], [(2, 700, None, 699, 1)]))
    places, prompts = cache.write(0, states(98, 2))
    assert places.shape[1] > 200
    assert prompts.shape[:2] > (2, 699)
    assert prompts[0, :4, 1, 1, 0].tolist() == [-111, -112, -113, 0]
    assert prompts[2, 699, 0, 0, 0] == 99
    assert places[1, [0, 200], 0, 0, 0].tolist() == [10, 98]
    cache.copy(source=1, target=2, length=1)
    assert places[2, [0, 200], 0, 0, 0].tolist() == [10, 0]


def test_transformers_models_write_the_same():
    cache, other = PlaceCache(2), PlaceCache(2)
    written = states(1, 2)
    for each in (cache, other):
        each.begin(step([(0, 0, 0, 0), (1, 0, 0, 0)]))
    keys, values = (written[:, part].transpose(0, 1)[None] for part in (0, 1))
    for found, expected in zip(other.update(keys, values, layer_idx=3), cache.write(3, written), strict=True):
        assert found.equal(expected)
