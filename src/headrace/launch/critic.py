"""The model that a critic has for itself, when `algorithm.critic.name_or_path` names one."""

from transformers import PreTrainedModel

from headrace.config.recipe import Recipe
from headrace.launch.found_models import FoundModel, find_model


def find_critic(recipe: Recipe, policy: FoundModel, *, longest_sequence: int) -> FoundModel | None:
    """Look for it, without loading weights; None when the critic is a head on the policy, or when there is none.

    Args:
        recipe: The recipe.
        policy: Whose tokens it reads.
        longest_sequence: Most tokens of a prompt with its completion.

    Raises:
        ModelError: It is missing or damaged, or cannot read what the policy writes.
    """
    critic = recipe.algorithm.critic
    if critic is None or critic.name_or_path is None:
        return None
    found = find_model(critic.name_or_path, key="algorithm.critic.name_or_path")
    found.check_reads(policy, longest_sequence=longest_sequence)
    return found


def load_backbone(critic: FoundModel) -> PreTrainedModel:
    """The critic's model without its output layer."""
    model = critic.load()
    backbone = model.base_model
    assert isinstance(backbone, PreTrainedModel), f"the body of {type(model).__name__} is a {type(backbone).__name__}"
    return backbone
