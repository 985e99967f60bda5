"""The worked example of docs/staleness.md, run."""

from collections import Counter

import pytest

from headrace.staleness.consumption import forced


@pytest.mark.parametrize(
    ("version", "live", "expected"),
    [
        (0, [1, 1, 1, 1], {1: 2}),
        (1, [1, 1, 2, 2], {1: 2, 2: 2}),
        (2, [2, 2, 3, 3], {2: 2, 3: 2}),
        (0, [1, 1, 1], {1: 1}),
        (1, [1, 2, 2], {1: 1, 2: 1}),
    ],
)
def test_the_forced_counts_of_the_example(version: int, live: list[float], expected: dict[int, int]) -> None:
    assert forced(Counter(live), version=version, groups_per_step=2) == expected
