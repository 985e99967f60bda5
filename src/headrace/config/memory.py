"""Estimates what a run keeps in memory."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.config.lora import count_adapter_parameters
from headrace.config.model_facts import ModelFacts
from headrace.config.recipe import Recipe
from headrace.config.teacher import SelfTeacher

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


def estimate_memory(
    recipe: Recipe, model: ModelFacts, *, teacher: ModelFacts | None = None, critic: ModelFacts | None = None
) -> MemoryEstimate:
    """Upper estimate for one process that trains and generates.

    Activations are those that a Llama-like layer keeps for its backward pass in float32: about 10 · hidden + 4 · intermediate numbers
    a token. In bfloat16 on a CPU it is less than half of that.

    Args:
        recipe: The recipe.
        model: The policy's sizes.
        teacher: Those of a local teacher.
        critic: Those of the critic's own model; a value head on the policy takes next to nothing.
    """
    parts = (*_trainer_state(recipe, model), *_shadows(recipe, model), _activations(recipe, model), _logits(), *_engine(recipe, model))
    parts += tuple(_scorers(recipe, model, teacher))
    if critic is not None:
        parts += tuple(_critic(recipe, critic))
    return MemoryEstimate(parts=parts)


def _trainer_state(recipe: Recipe, model: ModelFacts) -> list[MemoryPart]:
    weights, count = _FLOAT32 * model.num_parameters, _millions(model.num_parameters)
    parts = [MemoryPart(name="weights", formula=f"{count} parameters · 4 bytes", num_bytes=weights)]
    if recipe.lora is not None:
        # Frozen weights are cast in place of the float32 ones.
        num_learning = count_adapter_parameters(recipe.lora, model)
        adapter = f"{_millions(num_learning)} parameters · 4 bytes"
        parts.append(MemoryPart(name="adapter", formula=adapter, num_bytes=_FLOAT32 * num_learning))
        return parts + _optimizer_state(num_learning)
    parts += _optimizer_state(model.num_parameters)
    if recipe.training.autocast != "none":
        cast = f"{count} · 2 bytes, for products in bfloat16"
        parts.append(MemoryPart(name="cast weights", formula=cast, num_bytes=_BFLOAT16 * model.num_parameters))
    if recipe.algorithm.has_kl_loss:
        parts.append(MemoryPart(name="reference copy", formula=f"{count} · 4 bytes, because algorithm.beta > 0", num_bytes=weights))
    return parts


def _scorers(recipe: Recipe, model: ModelFacts, teacher: ModelFacts | None) -> Iterator[MemoryPart]:
    """What is only asked about rollouts. Its passes are as large as the trainer's, but keep nothing."""
    if recipe.algorithm.penalises_rewards:
        yield _frozen_copy("reference copy", "because algorithm.kl_in = 'reward'", recipe, model)
    if isinstance(recipe.teacher, SelfTeacher):
        yield _frozen_copy("teacher", "a snapshot of the policy", recipe, model)
    elif teacher is not None:
        yield _frozen_copy("teacher", "frozen", recipe, teacher)


def _frozen_copy(name: str, reason: str, recipe: Recipe, model: ModelFacts) -> MemoryPart:
    # `auto` may choose float32, so it counts as the larger type. In bfloat16 the embedding is kept in both.
    embedding = max((rows * columns for rows, columns in model.matrices.values()), default=0)
    if recipe.training.autocast == "bfloat16":
        formula = f"{_millions(model.num_parameters)} · 2 bytes + {_millions(embedding)} of the embedding · 4 bytes"
        return MemoryPart(name=name, formula=f"{formula}, {reason}", num_bytes=_BFLOAT16 * model.num_parameters + _FLOAT32 * embedding)
    formula = f"{_millions(model.num_parameters)} · 4 bytes, {reason}"
    return MemoryPart(name=name, formula=formula, num_bytes=_FLOAT32 * model.num_parameters)


def _critic(recipe: Recipe, critic: ModelFacts) -> list[MemoryPart]:
    """It computes while the policy's activations are kept."""
    count = _millions(critic.num_parameters)
    parts = [MemoryPart(name="weights", formula=f"{count} · 4 bytes", num_bytes=_FLOAT32 * critic.num_parameters)]
    parts += _optimizer_state(critic.num_parameters)
    if recipe.training.autocast != "none":
        cast = f"{count} · 2 bytes, for products in bfloat16"
        parts.append(MemoryPart(name="cast weights", formula=cast, num_bytes=_BFLOAT16 * critic.num_parameters))
    parts.append(_activations(recipe, critic))
    return [replace(part, name=f"critic's {part.name}") for part in parts]


def _shadows(recipe: Recipe, model: ModelFacts) -> list[MemoryPart]:
    if recipe.shadow is None:
        return []
    compared, layers = len(recipe.shadow.algorithms) + 1, min(recipe.shadow.num_layers, model.num_layers)
    in_layers = sum(math.prod(shape) for name, shape in model.matrices.items() if re.search(r"\.\d+\.", name))
    learning = in_layers if recipe.lora is None else count_adapter_parameters(recipe.lora, model)
    numbers, stalenesses = learning * layers // model.num_layers, recipe.schedule.max_staleness + 1
    formula = f"{compared} algorithms · {stalenesses} stalenesses · {_millions(numbers)} weights of {layers} layers · 4 bytes"
    return [MemoryPart(name="shadow gradients", formula=formula, num_bytes=_FLOAT32 * compared * stalenesses * numbers)]


def _optimizer_state(num_learning: int) -> list[MemoryPart]:
    count, size = _millions(num_learning), _FLOAT32 * num_learning
    return [
        MemoryPart(name="gradients", formula=f"{count} · 4 bytes", num_bytes=size),
        MemoryPart(name="AdamW", formula=f"{count} · 2 moments · 4 bytes", num_bytes=2 * size),
    ]


def _millions(number: int) -> str:
    return f"{number / 1e6:.1f}M"


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
