"""What computing a prompt once for all its completions saves: the cost model of docs/benchmarks.md."""

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Multiplications of a forward pass."""

    token: int
    """Of one token: the weights of all linear layers but the output layer."""
    pair: int
    """Of one token that looks at one token: score and value, in all heads and layers."""
    scored: int
    """Of one scored token: the weights of the output layer."""


def model_cost(model: PreTrainedModel) -> ModelCost:
    config, head = model.config, model.get_output_embeddings()
    linears = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not head]
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelCost(
        token=sum(layer.weight.numel() for layer in linears),
        pair=2 * config.num_hidden_layers * config.num_attention_heads * head_size,
        scored=head.weight.numel(),
    )


def predicted_speedup(cost: ModelCost, *, prompt: int, completion: int, completions: int) -> float:
    """Cost with the prompt repeated for each completion, over the cost with the prompt shared; lengths in tokens."""
    triangle = (prompt + completion) * (prompt + completion + 1) // 2
    scored = completions * completion * cost.scored
    repeated = completions * (prompt + completion) * cost.token + completions * triangle * cost.pair
    pairs = prompt * (prompt + 1) // 2 + completions * (prompt * completion + completion * (completion + 1) // 2)
    shared = (prompt + completions * completion) * cost.token + pairs * cost.pair
    return (repeated + scored) / (shared + scored)
