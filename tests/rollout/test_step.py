import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.rollout.step import Cells, DecodedToken, PromptPlace, Segment, Sight, Step

CPU = torch.device("cpu")


def step(decoded: list[tuple[int, int, int, int]], segments: list[tuple[int, int, int | None, int, int]] = ()) -> Step:
    """Decoded tokens as (place, slot, prompt length, position), segments as (slot, prompt length, place, start, number of tokens)."""
    return Step(
        [
            DecodedToken(place=place, prompt=PromptPlace(slot=slot, length=length), position=position, token=1)
            for place, slot, length, position in decoded
        ],
        [
            Segment(prompt=PromptPlace(slot=slot, length=length), place=place, start=start, tokens=[1] * count)
            for slot, length, place, start, count in segments
        ],
        device=CPU,
        dtype=torch.float32,
    )


def visible(sight: Sight, window: int | None = None, repeats: int = 1) -> list[list[int]]:
    return (sight.mask(window, repeats=repeats) == 0).int().flatten(0, 2).tolist()


def test_a_decoded_token_sees_its_prompt_and_its_place_up_to_itself():
    stepped = step([(0, 1, 4, 6), (1, 0, 2, 2)])
    _, own = stepped.places
    assert visible(own) == [[1, 1, 1], [1, 0, 0]]
    _, shared = stepped.prompts
    assert visible(shared) == [[1, 1, 0, 0], [1, 1, 1, 1]], "by slot"


def test_a_window_reaches_back_over_the_end_of_the_prompt():
    stepped = step([(0, 0, 4, 5)])
    assert visible(stepped.places[1], window=3) == [[1, 1]]
    assert visible(stepped.prompts[1], window=3) == [[0, 0, 0, 1]]
    assert visible(stepped.places[1], window=1) == [[0, 1]]
    assert visible(stepped.prompts[1], window=1) == [[0, 0, 0, 0]]


def test_siblings_see_one_prompt_from_their_own_positions():
    _, shared = step([(0, 0, 3, 3), (1, 0, 3, 5)]).prompts
    assert visible(shared, window=4, repeats=2) == [[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]


def test_without_any_cached_prompt_there_is_only_the_own_part():
    assert step([(0, 0, 0, 0)]).prompts is None


def test_a_segment_sees_what_came_before_it():
    ((_, sight),) = step([], [(0, 9, None, 2, 2)]).segments
    assert visible(sight) == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert visible(sight, window=2) == [[0, 1, 1, 0], [0, 0, 1, 1]]


def test_tokens_are_located_in_prompts_and_behind_them():
    located = step([(2, 1, 5, 7)], [(3, 4, None, 1, 2), (1, 5, 0, 5, 1)]).locations
    assert located.in_prompt.tolist() == [False, True, True, False]
    assert located.cell.tolist() == [2, 3, 3, 0]
    assert located.row.tolist() == [2, 1, 2, 0]


def test_positions_and_slots_of_all_tokens():
    stepped = step([(2, 1, 5, 7)], [(3, 4, None, 1, 2)])
    assert stepped.positions.tolist() == [7, 1, 2]
    assert stepped.num_slots == 4


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_every_token_comes_back_from_its_cell(cell_of_token: list[int]):
    cells = Cells(cell_of_token, CPU)
    tokens = torch.arange(len(cell_of_token))
    spread = cells.spread(tokens)
    assert cells.gather(spread).tolist() == tokens.tolist()
    assert spread.shape[0] == max(cell_of_token) + 1
    for token, cell in enumerate(cell_of_token):
        assert token in spread[cell]
