"""Rows to ranks: nearly equal work for each, as a step lasts as long as its slowest rank."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.types import SharedPromptRow


@dataclass(frozen=True, slots=True)
class _Part:
    num_tokens: int
    rows: tuple[SharedPromptRow, ...]


def balance_rows(rows: Sequence[SharedPromptRow], *, num_ranks: int) -> list[tuple[SharedPromptRow, ...]]:
    """Spread rows over ranks so that their tokens are nearly equal.

    Source: the largest differencing method (Karmarkar and Karp, 1982) for any number of parts: begin with one division for each row, in
    which all parts but one are empty; join the two divisions whose parts differ most, the heaviest part of one with the lightest of
    the other; repeat until one is left. Does not depend on the order of the rows.

    Example: rows of 8, 7, 6, 5 and 4 tokens for two ranks give (8, 6) and (7, 5, 4): 14 and 16.

    Args:
        rows: The rows to train on.
        num_ranks: Parts to make; at least 1. Some are empty when there are fewer rows.
    """
    ordered = sorted(rows, key=lambda row: (-row.num_tokens, row.group_id))
    empty = [_Part(0, ())] * (num_ranks - 1)
    divisions = [(-row.num_tokens, number, [_Part(row.num_tokens, (row,)), *empty]) for number, row in enumerate(ordered)]
    heapq.heapify(divisions)
    for number in range(len(ordered), 2 * len(ordered) - 1):
        _, _, first = heapq.heappop(divisions)
        _, _, second = heapq.heappop(divisions)
        joined = [_Part(a.num_tokens + b.num_tokens, a.rows + b.rows) for a, b in zip(first, reversed(second), strict=True)]
        joined.sort(key=lambda part: -part.num_tokens)
        heapq.heappush(divisions, (joined[-1].num_tokens - joined[0].num_tokens, number, joined))
    parts = divisions[0][2] if divisions else [_Part(0, ()), *empty]
    return [part.rows for part in parts]
