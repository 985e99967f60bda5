"""The policy and its prompts, loaded for training: after everything that can fail sooner has been checked."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.config.lora import check_targets
from headrace.config.recipe import Recipe
from headrace.config.teacher import ServerTeacher
from headrace.data.prompts import PromptSets, build_prompt_sets
from headrace.data.rows import Row
from headrace.errors import DataError, RecipeError
from headrace.launch.adapters import add_adapter, linear_layers
from headrace.launch.critic import find_critic, load_backbone
from headrace.launch.found_models import FoundModel, find_model
from headrace.launch.model_loading import auto_dtype, max_sequence_length
from headrace.launch.model_store import MODEL_KEY
from headrace.launch.teacher import find_teacher, load_teacher


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """A model, its tokenizer, the prompts tokenized for it, and the models that go with it."""

    model: PreTrainedModel
    """float32 weights, on the device that trains; with [lora], an adapter in a frozen base."""
    tokenizer: PreTrainedTokenizerBase
    prompts: PromptSets
    max_sequence_length: int
    """Most tokens of a prompt with its completion."""
    critic_backbone: PreTrainedModel | None = None
    """Of a critic that has a model for itself."""
    teacher: PreTrainedModel | ServerTeacher | None = None
    """A local teacher, or a server that has answered; None for any other."""


def load_policy_and_prompts(recipe: Recipe, rows: Sequence[Row], *, console: Console) -> Policy:
    """Load what a recipe trains, after everything that can be refused without weights, the cheap things first.

    Args:
        recipe: The recipe.
        rows: The data set.
        console: Where it is said what is waited for.

    Raises:
        UserError: A model is missing, damaged or unfit, a server does not answer, or the prompts do not fit.
    """
    found = find_model(recipe.model.name_or_path, key=MODEL_KEY, chat_template=recipe.model.chat_template)
    prompts = _fitting_prompts(recipe, rows, found.tokenizer)
    longest = _longest_sequence(recipe, prompts, found)
    if recipe.lora is not None:
        check_targets(recipe.lora, linear_layers(found.config))
    critic = find_critic(recipe, found, longest_sequence=longest)
    teacher = find_teacher(recipe, found, longest_sequence=longest, console=console)
    model = found.load()
    if recipe.lora is not None:
        add_adapter(model, recipe.lora, base=found.path, seed=recipe.run.seed)
    return Policy(
        model=_on_device(model),
        tokenizer=found.tokenizer,
        prompts=prompts,
        max_sequence_length=longest,
        critic_backbone=None if critic is None else _on_device(load_backbone(critic)),
        teacher=_on_device(load_teacher(teacher)) if isinstance(teacher, FoundModel) else teacher,
    )


def load_for_evaluation(recipe: Recipe, rows: Sequence[Row], *, model_path: str) -> Policy:
    """Load another model than the recipe's, or an adapter in its base, as it is.

    Raises:
        UserError: The model is missing or damaged, or the prompts do not fit.
    """
    found = find_model(
        model_path, key="--model", chat_template=recipe.model.chat_template, may_be_adapter=True, base=recipe.model.name_or_path
    )
    prompts = _fitting_prompts(recipe, rows, found.tokenizer)
    longest = _longest_sequence(recipe, prompts, found)
    return Policy(model=_on_device(found.load()), tokenizer=found.tokenizer, prompts=prompts, max_sequence_length=longest)


def _fitting_prompts(recipe: Recipe, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> PromptSets:
    """The recipe's training and held-out prompts.

    Raises:
        RecipeError: The longest prompt with the longest completion does not fit into a micro-batch.
    """
    num_epochs = recipe.training.num_train_epochs if recipe.training.max_steps is None else None
    prompts = build_prompt_sets(rows, recipe.data, tokenizer=tokenizer, seed=recipe.run.seed, num_epochs=num_epochs)
    longest = prompts.longest_prompt + recipe.sampling.max_completion_length
    if longest > recipe.training.token_budget:
        raise RecipeError(
            f"training.token_budget = {recipe.training.token_budget} tokens, but a sample can have {longest} (the longest prompt's "
            f"{prompts.longest_prompt} + sampling.max_completion_length = {recipe.sampling.max_completion_length}), and a micro-batch "
            f"must hold at least one; set training.token_budget to {longest} or more"
        )
    return prompts


def _longest_sequence(recipe: Recipe, prompts: PromptSets, model: FoundModel) -> int:
    """Most tokens of a prompt with its completion.

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
    return wanted if limit is None else min(wanted, limit)


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


def _on_device(model: PreTrainedModel) -> PreTrainedModel:
    """The model on the GPU when there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device)  # pyright: ignore[reportArgumentType] # transformers' decorator hides the signature
