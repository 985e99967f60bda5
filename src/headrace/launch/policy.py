"""The policy and its prompts, loaded for training: after everything that can fail sooner has been checked."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.config.recipe import Recipe
from headrace.data.prompts import PromptSets, build_prompt_sets
from headrace.data.rows import Row
from headrace.errors import DataError, RecipeError
from headrace.launch.adapters import add_adapter, base_of_adapter, is_adapter_folder, load_adapter
from headrace.launch.critic import load_critic_backbone
from headrace.launch.model_loading import auto_dtype, load_policy, load_tokenizer, max_sequence_length
from headrace.launch.model_store import resolve


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """A model, its tokenizer, and the prompts tokenized for it."""

    model: PreTrainedModel
    """float32 weights, on the device that trains; with [lora], an adapter in a frozen base."""
    tokenizer: PreTrainedTokenizerBase
    prompts: PromptSets
    max_sequence_length: int
    """Most tokens of a prompt with its completion."""
    critic_backbone: PreTrainedModel | None = None
    """Of a critic that has a model for itself."""


def load_policy_and_prompts(recipe: Recipe, rows: Sequence[Row], *, model_path: str | None = None) -> Policy:
    """Resolve, tokenize and load, the cheap things first.

    Args:
        recipe: The recipe.
        rows: The data set.
        model_path: A model or an adapter to load as it is, instead of preparing `model.name_or_path` for training.

    Raises:
        UserError: The model is missing or damaged, or the prompts do not fit.
    """
    given = recipe.model.name_or_path if model_path is None else model_path
    adapter = Path(given) if model_path is not None and is_adapter_folder(Path(given)) else None
    path = resolve(given) if adapter is None else base_of_adapter(adapter, fallback=recipe.model.name_or_path)
    tokenizer = load_tokenizer(path, chat_template=recipe.model.chat_template)
    prompts = tokenize_prompts(recipe, rows, tokenizer)
    check_token_budget(recipe, prompts)
    model = load_policy(path, dtype=torch.float32)
    if adapter is not None:
        load_adapter(model, adapter, base=path)
    elif recipe.lora is not None and model_path is None:
        add_adapter(model, recipe.lora, base=path, seed=recipe.run.seed)
    model.to(device())  # pyright: ignore[reportArgumentType] # transformers' decorator hides the signature
    policy = policy_of(recipe, model, tokenizer, prompts)
    if model_path is not None:
        return policy
    backbone = load_critic_backbone(recipe, tokenizer, longest_sequence=policy.max_sequence_length, device=device())
    return replace(policy, critic_backbone=backbone)


def tokenize_prompts(recipe: Recipe, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> PromptSets:
    """The recipe's training and held-out prompts."""
    num_epochs = recipe.training.num_train_epochs if recipe.training.max_steps is None else None
    return build_prompt_sets(rows, recipe.data, tokenizer=tokenizer, seed=recipe.run.seed, num_epochs=num_epochs)


def policy_of(recipe: Recipe, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: PromptSets) -> Policy:
    """Put the pieces together.

    Raises:
        DataError: A prompt leaves the model no room to answer.
    """
    wanted = prompts.longest_prompt + max(recipe.sampling.max_completion_length, recipe.evaluation.max_completion_length or 0)
    limit = max_sequence_length(model.config)
    if limit is not None and prompts.longest_prompt >= limit:
        raise DataError(
            f"the longest prompt has {prompts.longest_prompt} tokens, but the model's positions end at {limit}, so there is no room "
            f"for a completion; set data.max_prompt_length below {limit}"
        )
    return Policy(model=model, tokenizer=tokenizer, prompts=prompts, max_sequence_length=wanted if limit is None else min(wanted, limit))


def check_token_budget(recipe: Recipe, prompts: PromptSets) -> None:
    """Check that every sample that can occur fits into a micro-batch.

    Raises:
        RecipeError: The longest prompt with the longest completion does not.
    """
    longest = prompts.longest_prompt + recipe.sampling.max_completion_length
    if longest > recipe.training.token_budget:
        raise RecipeError(
            f"training.token_budget = {recipe.training.token_budget} tokens, but a sample can have {longest} (the longest prompt's "
            f"{prompts.longest_prompt} + sampling.max_completion_length = {recipe.sampling.max_completion_length}), and a micro-batch "
            f"must hold at least one; set training.token_budget to {longest} or more"
        )


def engine_copy(recipe: Recipe, model: PreTrainedModel) -> PreTrainedModel:
    """The engine's own copy of the policy, its parameters in the engine's type.

    Buffers stay as they are: rotary frequencies in bfloat16 would turn the engine's positions away from the trainer's.
    """
    dtypes = {"auto": auto_dtype(), "float32": torch.float32, "bfloat16": torch.bfloat16}
    dtype = dtypes[recipe.engine.dtype]
    cast = {id(p): torch.nn.Parameter(p.detach().to(dtype, copy=True), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, cast)


def autocast_dtype(recipe: Recipe) -> torch.dtype | None:
    """Arithmetic of the trainer's forward pass; None is float32."""
    if recipe.training.autocast == "none" or (recipe.training.autocast == "auto" and auto_dtype() is torch.float32):
        return None
    return torch.bfloat16


def device() -> torch.device:
    """The GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
