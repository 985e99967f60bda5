"""What planning needs to know of a model, read from its folder without loading the weights."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes of a decoder-only transformer."""

    num_parameters: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_kv_heads: int
    head_dim: int
    max_positions: int | None
    """Longest sequence in tokens that the model is made for; None when its config does not say."""


def read_model_facts(folder: Path) -> ModelFacts | None:
    """Read `config.json` and the headers of the `.safetensors` files.

    Returns:
        None when there are no such files, or when the config does not use the usual names.

    Raises:
        ModelError: A file is not what its name says.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        num_parameters = sum(map(_count_parameters, folder.glob("*.safetensors")))
        return _facts(config, num_parameters) if num_parameters else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"model folder {str(folder)!r} has a damaged config.json or .safetensors file ({error}); copy it again") from error


def _facts(config: Mapping[str, Any], num_parameters: int) -> ModelFacts | None:
    try:
        return ModelFacts(
            num_parameters=num_parameters,
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            max_positions=config.get("max_position_embeddings"),
        )
    except KeyError:
        return None


def _count_parameters(file: Path) -> int:
    """Elements of all tensors. The format: an 8-byte little-endian length, that many bytes of JSON, the data."""
    with file.open("rb") as content:
        header = json.loads(content.read(int.from_bytes(content.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
