"""How models are made to attend to shared prompts: what transformers calls in every layer, and the models it is right for."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from headrace.training.shared_prompt_attention import SharedPromptSequences, attend_to_shared_prompts

SHARED_PROMPT_MODEL_TYPES = frozenset(
    {"gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3"}
)
"""Architectures for which the tests show that a row equals separate sequences. Others get one sample a row."""

ATTENTION = "headrace_shared_prompt"


def install_attention(model: PreTrainedModel) -> bool:
    """Make a model that attends in one of the usual ways attend by `attend`.

    Returns:
        Whether the model can now compute several completions behind one prompt.
    """
    shares_prompts = model.config.model_type in SHARED_PROMPT_MODEL_TYPES
    if model.config._attn_implementation not in (("sdpa", "eager", ATTENTION) if shares_prompts else ("sdpa", ATTENTION)):
        return False
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
    return shares_prompts


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sequences: SharedPromptSequences | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer.

    Args:
        module: The layer.
        query: [rows, heads, tokens, head size].
        key: [rows, key-value heads, tokens, head size].
        value: As `key`.
        attention_mask: Unused when there are sequences.
        scaling: Factor of the scores; None for 1 / √(head size).
        sequences: How the tokens of a single row belong together; None for one sequence a row.
        sliding_window: How many tokens a layer sees, the query's own included; None for all.
        softcap: Gemma 2: scores become softcap · tanh(scores / softcap).
        **kwargs: For transformers' own attention.

    Returns:
        [rows, tokens, heads, head size].
    """
    with torch.autocast(query.device.type, enabled=False):
        if sequences is None:
            assert softcap is None, "without sequences, scores cannot be capped"
            return _attend_by_row(module, query, key, value, attention_mask, scaling=scaling, **kwargs), None
        output = attend_to_shared_prompts(
            *(each[0].transpose(0, 1) for each in (query, key, value)),
            sequences=sequences,
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=sliding_window,
            softcap=softcap,
        )
    return output[None], None


def _attend_by_row(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> Tensor:
    # On CPUs the fused backward pass takes half the time in float32.
    dtype = torch.float32 if query.device.type == "cpu" else value.dtype
    output, _ = sdpa_attention_forward(module, query.to(dtype), key.to(dtype), value.to(dtype), attention_mask, **kwargs)
    return output.to(value.dtype)
