"""Estimates what a run keeps in memory."""

from dataclasses import dataclass

from headrace.config.model_facts import ModelFacts
from headrace.config.recipe import Recipe

_FLOAT32 = 4
"""Bytes."""
_BFLOAT16 = 2
"""Bytes."""
_LOGITS_BLOCK = 8 * 2**20
"""Bytes of float32 logits that the trainer computes at once; a working copy and one of the products' type exist beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One thing that takes memory."""

    name: str
    formula: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What trainer and engine hold at their fullest, in bytes; the libraries themselves and the allocator's slack come on top."""

    parts: tuple[MemoryPart, ...]

    @property
    def total_bytes(self) -> int:
        """Sum of the parts."""
        return sum(part.num_bytes for part in self.parts)


def estimate_memory(recipe: Recipe, model: ModelFacts) -> MemoryEstimate:
    """Upper estimate for one process that trains and generates.

    Activations are those that a Llama-like layer keeps for its backward pass in float32: about 10 · hidden + 4 · intermediate numbers
    a token. In bfloat16 on a CPU it is less than half of that.
    """
    parts = (*_trainer_state(recipe, model), _activations(recipe, model), _logits(), *_engine(recipe, model))
    return MemoryEstimate(parts=parts)


def _trainer_state(recipe: Recipe, model: ModelFacts) -> list[MemoryPart]:
    weights = _FLOAT32 * model.num_parameters
    count = f"{model.num_parameters / 1e6:.1f}M"
    parts = [
        MemoryPart(name="weights", formula=f"{count} parameters · 4 bytes", num_bytes=weights),
        MemoryPart(name="gradients", formula=f"{count} · 4 bytes", num_bytes=weights),
        MemoryPart(name="AdamW", formula=f"{count} · 2 moments · 4 bytes", num_bytes=2 * weights),
    ]
    if recipe.training.autocast != "none":
        parts.append(
            MemoryPart(
                name="cast weights", formula=f"{count} · 2 bytes, for products in bfloat16", num_bytes=_BFLOAT16 * model.num_parameters
            )
        )
    if recipe.algorithm.beta > 0:
        parts.append(MemoryPart(name="reference copy", formula=f"{count} · 4 bytes, because algorithm.beta > 0", num_bytes=weights))
    return parts


def _activations(recipe: Recipe, model: ModelFacts) -> MemoryPart:
    tokens, hidden = recipe.training.token_budget, model.hidden_size
    layer = 10 * hidden + 4 * model.intermediate_size
    if recipe.training.gradient_checkpointing:
        numbers = tokens * (model.num_layers * hidden + layer)
        formula = f"{tokens} tokens · ({model.num_layers} layers · {hidden} + one layer's {layer}) · 4 bytes"
    else:
        numbers = tokens * model.num_layers * layer
        formula = f"{tokens} tokens · {model.num_layers} layers · (10 · {hidden} + 4 · {model.intermediate_size}) · 4 bytes"
    return MemoryPart(name="activations", formula=formula, num_bytes=_FLOAT32 * numbers)


def _logits() -> MemoryPart:
    return MemoryPart(name="logits", formula="3 blocks of 8 MiB, whatever the vocabulary", num_bytes=3 * _LOGITS_BLOCK)


def _engine(recipe: Recipe, model: ModelFacts) -> list[MemoryPart]:
    # `auto` may choose float32, so it counts as the larger type.
    width = _BFLOAT16 if recipe.engine.dtype == "bfloat16" else _FLOAT32
    sequences = min(recipe.engine.max_concurrent_sequences, recipe.slots * recipe.algorithm.num_generations)
    tokens = recipe.data.max_prompt_length + recipe.sampling.max_completion_length
    token_numbers = model.num_layers * 2 * model.num_kv_heads * model.head_dim
    cache = f"{sequences} sequences · {tokens} tokens · {model.num_layers} layers · 2 · {model.num_kv_heads} heads · {model.head_dim}"
    return [
        MemoryPart(
            name="engine's weights", formula=f"{model.num_parameters / 1e6:.1f}M · {width} bytes", num_bytes=width * model.num_parameters
        ),
        MemoryPart(name="KV cache", formula=f"{cache} · {width} bytes", num_bytes=width * sequences * tokens * token_numbers),
    ]
