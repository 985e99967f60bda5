"""The teacher that a recipe names, found and asked before any weights are loaded."""

import asyncio

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.config.recipe import Recipe
from headrace.config.teacher import LocalTeacher, ServerTeacher
from headrace.launch.adapters import merge_adapter
from headrace.launch.found_models import FoundModel, find_model
from headrace.training.server_scorer import ServerScorer

_PROBE = "The river turns the wheel, and the wheel turns the stone 24 times."
"""What a server is asked about first."""


def find_teacher(recipe: Recipe, policy: FoundModel, *, longest_sequence: int, console: Console) -> FoundModel | ServerTeacher | None:
    """Look for a local teacher, or ask a server; None for any other.

    Args:
        recipe: The recipe.
        policy: Who learns.
        longest_sequence: Most tokens of a prompt with its completion.
        console: Where it is said that a server is asked.

    Returns:
        The teacher; a server with the model's name on it.

    Raises:
        UserError: It is missing, or cannot read what the policy writes.
    """
    match recipe.teacher:
        case LocalTeacher(name_or_path=name):
            teacher = find_model(name, key="teacher.name_or_path", may_be_adapter=True)
            teacher.check_reads(policy, longest_sequence=longest_sequence)
            return teacher
        case ServerTeacher() as server:
            scorer = server_scorer(server)
            console.print(f"asking the teacher at {server.url}", markup=False)
            # On a loop of its own, where Ctrl-C ends the question at once.
            return server.model_copy(update={"model": asyncio.run(_ask(scorer, policy.tokenizer))})
        case _:
            return None


def load_teacher(teacher: FoundModel) -> PreTrainedModel:
    """A local teacher; an adapter becomes a part of its base's weights.

    Raises:
        UserError: The weights, or the adapter, cannot be loaded.
    """
    model = teacher.load()
    if teacher.adapter is not None:
        merge_adapter(model)
    return model


def server_scorer(server: ServerTeacher) -> ServerScorer:
    """What asks a server.

    Raises:
        UserError: The key is missing, or the address is none.
    """
    return ServerScorer(
        url=server.url,
        model=server.model,
        form=server.form,
        api_key=server.api_key(),
        max_concurrent_requests=server.max_concurrent_requests,
        timeout_seconds=server.timeout_seconds,
        max_attempts=server.max_attempts,
    )


async def _ask(scorer: ServerScorer, tokenizer: PreTrainedTokenizerBase) -> str:
    """The name of the server's model."""
    token_ids = tokenizer(_PROBE)["input_ids"]
    try:
        return await scorer.check(token_ids, [str(tokenizer.decode([token_id])) for token_id in token_ids])
    finally:
        await scorer.close()
