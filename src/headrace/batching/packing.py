"""Rows to micro-batches within a token budget.

A micro-batch is computed as one sequence of all its rows, padded at its end only, by fewer than 64 tokens. So its tokens are what memory
depends on, and what the budget limits.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import RecipeError
from headrace.types import SharedPromptRow


def pack_rows(rows: Sequence[SharedPromptRow], *, token_budget: int) -> list[tuple[SharedPromptRow, ...]]:
    """Spread rows over few micro-batches.

    Source: AReaL (arXiv 2505.24298), Algorithm 1: longest first, each into the micro-batch with the fewest samples among those that
    have room, or into a new one. Equally long rows go in the order of their group ids, so that the result does not depend on the
    order of the rows.

    Example: rows of 6, 3, 4 and 2 tokens with a budget of 8 give (6, 2) and (4, 3).

    Args:
        rows: The rows to train on; one longer than the budget is split, with its prompt repeated.
        token_budget: Most tokens of a micro-batch.

    Raises:
        RecipeError: A single sample with its prompt is longer than the budget.
    """
    fitting = [part for row in rows for part in split_row(row, token_budget=token_budget)]
    packed: list[list[SharedPromptRow]] = []
    num_tokens: list[int] = []
    num_samples: list[int] = []
    for row in sorted(fitting, key=lambda row: (-row.num_tokens, row.group_id)):
        room = [index for index, tokens in enumerate(num_tokens) if tokens + row.num_tokens <= token_budget]
        if not room:
            room = [len(packed)]
            packed.append([])
            num_tokens.append(0)
            num_samples.append(0)
        chosen = min(room, key=num_samples.__getitem__)
        packed[chosen].append(row)
        num_tokens[chosen] += row.num_tokens
        num_samples[chosen] += len(row.samples)
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


def _sample_over_budget(row: SharedPromptRow, token_budget: int) -> RecipeError:
    return RecipeError(
        f"group {row.group_id} has a sample of {row.num_tokens} tokens (prompt {len(row.prompt_ids)} + completion {row.num_loss_tokens}), "
        f"but a micro-batch may hold training.token_budget = {token_budget}, and a sample cannot be split; set training.token_budget "
        f"to at least {row.num_tokens}, or lower data.max_prompt_length or sampling.max_completion_length"
    )
