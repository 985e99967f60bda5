"""From the groups of a training step to its micro-batches."""

from collections.abc import Sequence

from headrace.batching.packing import pack_rows
from headrace.batching.samples import row_of
from headrace.telemetry.events import TrainedGroup
from headrace.types import MicroBatch, SharedPromptRow


def plan_micro_batches(groups: Sequence[TrainedGroup], *, version: int, token_budget: int, num_minibatches: int = 1) -> list[MicroBatch]:
    """Split the groups evenly over the step's optimizer updates, in the order of their ids, and pack each share.

    The plan is the same whatever order the groups arrived in. Rollouts without an advantage are left out; a share without
    any sample has no micro-batch. When groups stream in one by one, plan each alone, with `num_minibatches` 1.

    Args:
        groups: The step's groups with their advantages.
        version: Trainer version that trains on them.
        token_budget: Most tokens of a micro-batch, padding included.
        num_minibatches: Optimizer updates of the step.

    Raises:
        RecipeError: A single sample with its prompt is longer than the budget.
    """
    ordered = sorted(groups, key=lambda group: group.scored.group.group_id)
    shares: list[list[SharedPromptRow]] = [[] for _ in range(num_minibatches)]
    for position, group in enumerate(ordered):
        row = row_of(group)
        if row is not None:
            shares[position * num_minibatches // len(ordered)].append(row)
    return [
        MicroBatch(version=version, minibatch=minibatch, rows=rows)
        for minibatch, share in enumerate(shares)
        for rows in pack_rows(share, token_budget=token_budget)
    ]
