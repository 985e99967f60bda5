"""Shared-prompt attention: several completions behind one prompt, in one row, each as if it were alone.

A completion's token sees the prompt and its own completion's tokens before it. For models whose layers mix tokens by
masked attention alone and take positions from rotary embeddings, a row so gives what separate sequences give
(Periodic Asynchrony, arXiv 2511.18871, "shared-prompt attention").
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from headrace.training.collation import PADDING_SEGMENT, PROMPT_SEGMENT, CollatedRows

SHARED_PROMPT_MODEL_TYPES = frozenset(
    {"gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3"}
)
"""Architectures for which the tests show that a row equals separate sequences. Others get one sample a row."""

FLOAT32_SDPA = "headrace_float32_sdpa"

AttentionMask = Tensor | dict[str, Tensor]


def can_share_prompts(config: PreTrainedConfig) -> bool:
    """Whether the model can compute several completions behind one prompt; it must also run an attention that takes any mask."""
    return config.model_type in SHARED_PROMPT_MODEL_TYPES and config._attn_implementation in ("sdpa", "eager", FLOAT32_SDPA)


def attention_mask(rows: CollatedRows, config: PreTrainedConfig, dtype: torch.dtype) -> AttentionMask:
    """What each token of each row may see, to be added to attention scores.

    Args:
        rows: Rows of any number of completions.
        config: Tells whether layers look back over a window only, and which ones.
        dtype: The type that attention computes in.

    Returns:
        [rows, 1, width, width], or one by the type of layer when the model has layers with and without a window.
    """
    window: int | None = getattr(config, "sliding_window", None)
    layer_types = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    visible = _visible(rows)
    masks = {"full_attention": visible}
    if "sliding_attention" in layer_types:
        assert window is not None, f"{config.model_type} has layers with a sliding window but no window"
        distance = rows.position_ids[:, :, None] - rows.position_ids[:, None, :]
        masks["sliding_attention"] = visible & (distance < window)
    additive = {layer_type: _additive(masks[layer_type], dtype) for layer_type in layer_types}
    return additive if len(additive) > 1 else additive.popitem()[1]


def _visible(rows: CollatedRows) -> Tensor:
    segments = rows.segment_ids
    query, key = segments[:, :, None], segments[:, None, :]
    same_sequence = ((key == PROMPT_SEGMENT) | (key == query)) & (query != PADDING_SEGMENT)
    # Padding sees itself: a softmax over nothing is NaN, which a backward pass would spread.
    itself = torch.eye(segments.shape[1], dtype=torch.bool, device=segments.device)
    return same_sequence.tril() | itself


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    # The lowest number, not -inf: fused kernels meet blocks that are masked altogether.
    mask = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype, device=visible.device)
    return mask.masked_fill_(visible, 0).unsqueeze(1)


def attend_in_float32(model: PreTrainedModel) -> bool:
    """Take fused attention out of bfloat16 autocast where that is faster: on CPUs, where its backward pass took half the time."""
    if model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(FLOAT32_SDPA, _float32_sdpa)
    AttentionMaskInterface.register(FLOAT32_SDPA, sdpa_mask)
    model.set_attn_implementation(FLOAT32_SDPA)
    return True


def _float32_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    with torch.autocast(query.device.type, enabled=False):
        output, weights = sdpa_attention_forward(module, query.float(), key.float(), value.float(), attention_mask, **kwargs)
    return output.to(query.dtype), weights
