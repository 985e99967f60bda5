"""From a recipe to the policies that are asked about rollouts: a teacher, and the initial policy where rewards depend on it."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.config.recipe import Recipe
from headrace.config.teacher import LocalTeacher, SelfTeacher, ServerTeacher
from headrace.errors import ModelError
from headrace.interfaces import LogprobScorer
from headrace.launch.adapters import base_of_adapter, is_adapter_folder, load_adapter, merge_adapter
from headrace.launch.model_loading import load_policy, load_tokenizer, max_sequence_length
from headrace.launch.model_store import resolve
from headrace.launch.policy import Policy, autocast_dtype, device
from headrace.launch.threads import ThreadShares
from headrace.training.frozen_policy import FrozenPolicy
from headrace.training.local_scorer import LocalScorer
from headrace.training.server_scorer import ServerScorer
from headrace.training.snapshot_scorer import SnapshotScorer

_PROBE = "The river turns the wheel, and the wheel turns the stone 24 times."
"""What a server is asked about first."""


def make_teacher(recipe: Recipe, policy: Policy, threads: ThreadShares) -> LogprobScorer | None:
    """Whom the policy is distilled from; None without `[teacher]`. Call it before the policy's model is given to a trainer.

    Raises:
        UserError: The teacher is missing, or has other tokens than the policy.
    """
    match recipe.teacher:
        case None:
            return None
        case LocalTeacher(name_or_path=name):
            return LocalScorer("teacher", _frozen(recipe, _load_teacher(name, policy)), threads=threads.scorers)
        case SelfTeacher():
            return SnapshotScorer(_frozen(recipe, copy.deepcopy(policy.model)), threads=threads.scorers)
        case ServerTeacher() as server:
            return _server_scorer(server, policy)


def make_reference(recipe: Recipe, policy: Policy, threads: ThreadShares) -> LocalScorer | None:
    """A copy of the policy as it is now, where its log-probabilities are taken off rewards; else None."""
    if not recipe.algorithm.penalises_rewards:
        return None
    return LocalScorer("reference", _frozen(recipe, copy.deepcopy(policy.model)), threads=threads.scorers)


def _frozen(recipe: Recipe, model: PreTrainedModel) -> FrozenPolicy:
    return FrozenPolicy(
        model,
        temperature=recipe.sampling.temperature,
        autocast_dtype=autocast_dtype(recipe),
        token_budget=recipe.training.token_budget,
    )


def _load_teacher(name: str, policy: Policy) -> PreTrainedModel:
    adapter = Path(name).expanduser() if is_adapter_folder(Path(name).expanduser()) else None
    path = resolve(name) if adapter is None else base_of_adapter(adapter)
    _check_vocabulary(load_tokenizer(path), policy.tokenizer, name)
    model = load_policy(path, dtype=torch.float32)
    if adapter is not None:
        load_adapter(model, adapter, base=path)
        merge_adapter(model)
    _check_sizes(model, policy, name)
    return model.to(device())  # pyright: ignore[reportArgumentType] # transformers' decorator hides the signature


def _check_vocabulary(teacher: PreTrainedTokenizerBase, policy: PreTrainedTokenizerBase, name: str) -> None:
    theirs, ours = teacher.get_vocab(), policy.get_vocab()
    if theirs == ours:
        return
    different = sorted(token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token))
    raise ModelError(
        f"the teacher {name!r} has another vocabulary than the policy: {len(different)} of {len(ours)} tokens differ, for instance "
        f"{different[0]!r}, so its log-probabilities would be of other tokens; set teacher.name_or_path to a model of the policy's family"
    )


def _check_sizes(teacher: PreTrainedModel, policy: Policy, name: str) -> None:
    rows, needed_rows = (model.config.get_text_config().vocab_size for model in (teacher, policy.model))
    if rows < needed_rows:
        raise ModelError(
            f"the teacher {name!r} knows token ids below {rows}, but the policy may sample any below {needed_rows}; choose a larger teacher"
        )
    positions = max_sequence_length(teacher.config)
    if positions is not None and positions < policy.max_sequence_length:
        raise ModelError(
            f"the teacher {name!r} has {positions} positions, but a prompt with its completion may have {policy.max_sequence_length} "
            "tokens; lower data.max_prompt_length or sampling.max_completion_length, or choose another teacher"
        )


def _server_scorer(server: ServerTeacher, policy: Policy) -> ServerScorer:
    scorer = ServerScorer(
        url=server.url,
        model=server.model,
        form=server.form,
        api_key=server.api_key(),
        max_concurrent_requests=server.max_concurrent_requests,
        timeout_seconds=server.timeout_seconds,
        max_attempts=server.max_attempts,
    )
    token_ids = policy.tokenizer(_PROBE)["input_ids"]
    scorer.check(token_ids, [str(policy.tokenizer.decode([token_id])) for token_id in token_ids])
    return scorer
