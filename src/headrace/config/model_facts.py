"""What planning needs to know of a model, read from its folder without loading the weights."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    matrices: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Shape of the weight, [out features, in features] of a linear layer, by the layer's name."""


def read_model_facts(folder: Path) -> ModelFacts | None:
    """Read `config.json` and the headers of the `.safetensors` files.

    Returns:
        None when there are no such files, or when the config does not use the usual names.

    Raises:
        ModelError: A file is not what its name says.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shapes = {name: shape for file in folder.glob("*.safetensors") for name, shape in _read_shapes(file).items()}
        return _facts(config, shapes) if shapes else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"model folder {str(folder)!r} has a damaged config.json or .safetensors file ({error}); copy it again") from error


def _facts(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> ModelFacts | None:
    try:
        return ModelFacts(
            num_parameters=sum(map(math.prod, shapes.values())),
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            max_positions=config.get("max_position_embeddings"),
            matrices={name.removesuffix(".weight"): (shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2},
        )
    except KeyError:
        return None


def _read_shapes(file: Path) -> dict[str, list[int]]:
    """Of all tensors. The format: an 8-byte little-endian length, that many bytes of JSON, the data."""
    with file.open("rb") as content:
        header = json.loads(content.read(int.from_bytes(content.read(8), "little")))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
