"""From the groups of a training step to its micro-batches."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from headrace.batching.balance import balance_rows
from headrace.batching.packing import pack_rows
from headrace.batching.samples import row_of, shadow_row_of
from headrace.telemetry.events import TrainedGroup
from headrace.types import MicroBatch, SharedPromptRow


def plan_micro_batches(
    groups: Sequence[TrainedGroup], *, version: int, token_budget: int, num_minibatches: int = 1, num_ranks: int = 1
) -> list[MicroBatch]:
    """Split the groups evenly over the step's optimizer updates, in the order of their ids; balance each share over the ranks, and pack it.

    The plan is the same whatever order the groups arrived in. Rollouts without an advantage are left out; a share without
    any sample has no micro-batch. What only algorithms that are compared with would train on follows in micro-batches of its own, so that
    the others stay as they are. When groups stream in one by one, plan each alone, with `num_minibatches` 1.

    Args:
        groups: The step's groups with their advantages.
        version: Trainer version that trains on them.
        token_budget: Most tokens of a micro-batch.
        num_minibatches: Optimizer updates of the step.
        num_ranks: Trainer ranks. All of them get equally many micro-batches, the last ones of some perhaps empty, as they compute in step.

    Raises:
        RecipeError: A single sample with its prompt is longer than the budget.
    """
    ordered = sorted(groups, key=lambda group: group.scored.group.group_id)
    shares: list[list[TrainedGroup]] = [[] for _ in range(num_minibatches)]
    for position, group in enumerate(ordered):
        shares[position * num_minibatches // len(ordered)].append(group)
    return [
        MicroBatch(version=version, minibatch=minibatch, rank=rank, rows=rows, shadow_rows=shadow_rows)
        for minibatch, share in enumerate(shares)
        for rank, rows, shadow_rows in _parts(share, token_budget=token_budget, num_ranks=num_ranks)
    ]


def _parts(
    share: Sequence[TrainedGroup], *, token_budget: int, num_ranks: int
) -> Iterator[tuple[int, tuple[SharedPromptRow, ...], tuple[SharedPromptRow, ...]]]:
    """Rank, rows and shadow rows of each micro-batch."""
    for turn in _turns(_present(map(row_of, share)), token_budget=token_budget, num_ranks=num_ranks):
        yield from ((rank, rows, ()) for rank, rows in enumerate(turn))
    for turn in _turns(_present(map(shadow_row_of, share)), token_budget=token_budget, num_ranks=num_ranks):
        yield from ((rank, (), rows) for rank, rows in enumerate(turn))


def _present(rows: Iterable[SharedPromptRow | None]) -> list[SharedPromptRow]:
    return [row for row in rows if row is not None]


def _turns(share: Sequence[SharedPromptRow], *, token_budget: int, num_ranks: int) -> Iterator[tuple[tuple[SharedPromptRow, ...], ...]]:
    """What the ranks compute one after the other: one micro-batch each a turn."""
    return zip_longest(*(pack_rows(part, token_budget=token_budget) for part in balance_rows(share, num_ranks=num_ranks)), fillvalue=())
