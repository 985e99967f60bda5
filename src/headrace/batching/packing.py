"""Rows to micro-batches within a token budget, padding included.

A micro-batch is computed as a rectangle: as many rows as it has, each as long as its longest. That area is what memory
depends on, so that is what the budget limits.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import RecipeError
from headrace.types import SharedPromptRow


def pack_rows(rows: Sequence[SharedPromptRow], *, token_budget: int) -> list[tuple[SharedPromptRow, ...]]:
    """Spread rows over as few micro-batches as the budget allows, like with like.

    Source: AReaL (arXiv 2505.24298), Algorithm 1 (longest first, each into a micro-batch with room, or a new one), with
    padding in the cost. A shorter row then costs what the longest one does, so a micro-batch with room takes any
    later row: only the last one can have room, and there is nothing to choose between. Equally long rows go in the order
    of their group ids, so that the result does not depend on the order of the rows.

    Example: rows of 6, 3 and 3 tokens with a budget of 6 give (6) and (3, 3); together they would cost 3 · 6 = 18.

    Args:
        rows: The rows to train on; one longer than the budget is split, with its prompt repeated.
        token_budget: Most tokens of a micro-batch.

    Raises:
        RecipeError: A single sample with its prompt is longer than the budget.
    """
    fitting = [part for row in rows for part in split_row(row, token_budget=token_budget)]
    packed: list[list[SharedPromptRow]] = []
    for row in sorted(fitting, key=lambda row: (-row.num_tokens, row.group_id)):
        if packed and padded_tokens([*packed[-1], row]) <= token_budget:
            packed[-1].append(row)
        else:
            packed.append([row])
    return [tuple(micro_batch) for micro_batch in packed]


def split_row(row: SharedPromptRow, *, token_budget: int) -> list[SharedPromptRow]:
    """The row itself, or rows with fewer samples each that fit the budget.

    Source: AReaL's Algorithm 1 over the samples: longest first, each to the part with the fewest samples among those that it
    fits in, or to a new one.

    Raises:
        RecipeError: A single sample with its prompt is longer than the budget.
    """
    if row.num_tokens <= token_budget:
        return [row]
    parts: list[SharedPromptRow] = []
    for sample in sorted(row.samples, key=lambda sample: -len(sample.completion_ids)):
        alone = replace(row, samples=(sample,))
        if alone.num_tokens > token_budget:
            raise _sample_over_budget(alone, token_budget)
        room = [index for index, part in enumerate(parts) if part.num_tokens + len(sample.completion_ids) <= token_budget]
        if room:
            fewest = min(room, key=lambda index: len(parts[index].samples))
            parts[fewest] = replace(row, samples=(*parts[fewest].samples, sample))
        else:
            parts.append(alone)
    return parts


def padded_tokens(rows: Sequence[SharedPromptRow]) -> int:
    """Cost of a micro-batch in tokens: its rows times the longest one."""
    return len(rows) * max((row.num_tokens for row in rows), default=0)


def _sample_over_budget(row: SharedPromptRow, token_budget: int) -> RecipeError:
    return RecipeError(
        f"group {row.group_id} has a sample of {row.num_tokens} tokens (prompt {len(row.prompt_ids)} + completion {row.num_loss_tokens}), "
        f"but a micro-batch may hold training.token_budget = {token_budget}, and a sample cannot be split; set training.token_budget "
        f"to at least {row.num_tokens}, or lower data.max_prompt_length or sampling.max_completion_length"
    )
