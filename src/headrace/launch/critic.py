"""The model that a critic has for itself, when `algorithm.critic.name_or_path` names one."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headrace.config.recipe import Recipe
from headrace.errors import ModelError
from headrace.launch.model_loading import load_policy, load_tokenizer, max_sequence_length
from headrace.launch.model_store import resolve


def load_critic_backbone(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *, longest_sequence: int, device: torch.device
) -> PreTrainedModel | None:
    """Load it without its output layer, with float32 weights; None when the critic is a head on the policy, or when there is none.

    Args:
        recipe: The recipe.
        tokenizer: The policy's.
        longest_sequence: Most tokens of a prompt with its completion.
        device: Where it learns.

    Raises:
        ModelError: It is missing or damaged, reads other tokens than the policy writes, or cannot take sequences as long as the policy's.
    """
    critic = recipe.algorithm.critic
    if critic is None or critic.name_or_path is None:
        return None
    path = resolve(critic.name_or_path)
    if load_tokenizer(path).get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"algorithm.critic.name_or_path = {critic.name_or_path!r} numbers its tokens in another way than model.name_or_path = "
            f"{recipe.model.name_or_path!r}, so it cannot read what the policy writes; set it to a model with the same tokenizer"
        )
    model = load_policy(path, dtype=torch.float32)
    limit = max_sequence_length(model.config)
    if limit is not None and limit < longest_sequence:
        raise ModelError(
            f"the positions of algorithm.critic.name_or_path = {critic.name_or_path!r} end at {limit}, but a prompt and its completion may "
            f"have {longest_sequence} tokens; lower sampling.max_completion_length, or choose another critic"
        )
    backbone = model.base_model
    assert isinstance(backbone, PreTrainedModel), f"the body of {type(model).__name__} is a {type(backbone).__name__}"
    return backbone.to(device)  # pyright: ignore[reportArgumentType] # transformers' decorator hides the signature
