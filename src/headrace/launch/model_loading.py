"""Tokenizer and policy from a model folder or the hub, with every way of failing told in one line."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from headrace.errors import ModelError
from headrace.launch.model_store import MODEL_KEY

# Its bars would draw over the run's own view.
disable_progress_bar()


def load_tokenizer(path: Path | str, *, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer.

    Args:
        path: Model folder or hub name.
        chat_template: Jinja template to use instead of its own.

    Raises:
        ModelError: It cannot be loaded, or the template is not valid Jinja.
    """
    with _told_in_one_line(path, "the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(path)
    if chat_template is not None:
        try:
            jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(chat_template)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"model.chat_template is not a Jinja template: {error.message} (line {error.lineno})") from error
        tokenizer.chat_template = chat_template
    return tokenizer


def load_config(path: Path | str, *, key: str = MODEL_KEY) -> PreTrainedConfig:
    """Load the configuration of a causal language model.

    Dropout is switched off in it: with it, the trainer's log-probabilities would differ from the engine's in every pass.

    Args:
        path: Model folder or hub name.
        key: Where the model was set, for the message.

    Raises:
        ModelError: It cannot be loaded, or is no causal language model's.
    """
    with _told_in_one_line(path, "the model"):
        config = AutoConfig.from_pretrained(path)
    _check_is_causal_decoder(config, path, key)
    _switch_off_dropout(config)
    return config


def load_policy(path: Path | str, *, dtype: torch.dtype, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """Load a causal language model, in evaluation mode.

    Attention is torch's fused one where the architecture allows it, else the model's own (Gemma 2 caps its scores).

    Args:
        path: Model folder or hub name.
        dtype: Type of the parameters.
        config: Its configuration, when that is loaded already.

    Raises:
        ModelError: It cannot be loaded, is no causal language model, or lacks some of its weights.
    """
    config = load_config(path) if config is None else config
    with _told_in_one_line(path, "the model"):
        # Without the argument, attention would be what the folder's configuration names, for instance a kernel that is not installed.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, attn_implementation=None, output_loading_info=True
        )
    model, report = loaded
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelError(f"model {str(path)!r} has no weights for {len(missing)} parameters ({missing[0]}, …), so they would be random")
    return model.eval()


def stop_token_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """Every token that ends a completion: all that the generation config, the model's config and the tokenizer declare.

    Many chat models declare several, for instance one that ends a turn and one that ends a text. The set is empty when nobody
    declares any; completions then end at their length limit or at a stop string.
    """
    declared = [tokenizer.eos_token_id, model.config.get_text_config().eos_token_id]
    if model.generation_config is not None:
        declared.append(model.generation_config.eos_token_id)
    return frozenset(token_id for entry in declared for token_id in _as_ids(entry))


def max_sequence_length(config: Any) -> int | None:
    """Tokens that a model's positions reach, prompt and completion together; None when its configuration sets no limit."""
    text_config = config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    return next((int(limit) for name in names if (limit := getattr(text_config, name, None)) is not None), None)


def auto_dtype() -> torch.dtype:
    """bfloat16 where this machine's hardware computes in it, else float32."""
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32


def _as_ids(entry: int | Iterable[int] | None) -> Iterable[int]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, int) else entry


def _check_is_causal_decoder(config: Any, path: Path | str, key: str) -> None:
    architectures: list[str] = config.architectures or []
    causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if architectures:
        causal = causal and not set(architectures).isdisjoint(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if not causal or getattr(config, "is_encoder_decoder", False):
        kind = ", ".join(architectures) or config.model_type
        raise ModelError(
            f"model {str(path)!r} is a {kind}, but only causal language models (decoders) can be used here; "
            f"set {key} to one, for instance a …ForCausalLM"
        )


def _switch_off_dropout(config: Any) -> None:
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in list(part.to_dict().items()):
            if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float):
                setattr(part, name, 0.0)


@contextmanager
def _told_in_one_line(path: Path | str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{what} of {str(path)!r} cannot be loaded: {reason}") from error
