import json
from pathlib import Path

import pytest

from headrace.config.model_facts import ModelFacts, read_model_facts
from headrace.errors import ModelError

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def write_model(folder: Path, config: dict[str, int], shapes: dict[str, list[int]], file: str = "model.safetensors") -> None:
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    encoded = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / file).write_bytes(len(encoded).to_bytes(8, "little") + encoded)


def test_parameters_of_all_files_are_counted(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, {"a": [3, 4], "b": [5], "scalar": []}, "model-1.safetensors")
    write_model(tmp_path, CONFIG, {"c": [2, 2, 2]}, "model-2.safetensors")
    expected = ModelFacts(
        num_parameters=12 + 5 + 1 + 8,
        num_layers=2,
        hidden_size=8,
        intermediate_size=16,
        num_kv_heads=2,
        head_dim=2,
        max_positions=64,
        matrices={"a": (3, 4)},
    )
    assert read_model_facts(tmp_path) == expected


def test_heads_default_to_what_transformers_takes(tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name not in ("num_key_value_heads", "max_position_embeddings")}
    write_model(tmp_path, config | {"head_dim": 32}, {"a": [1]})
    facts = read_model_facts(tmp_path)
    assert facts is not None
    assert (facts.num_kv_heads, facts.head_dim, facts.max_positions) == (4, 32, None)


def test_a_config_with_other_names_gives_nothing(tmp_path: Path) -> None:
    write_model(tmp_path, {"n_layer": 2}, {"a": [1]})
    assert read_model_facts(tmp_path) is None


def test_a_folder_without_safetensors_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_model_facts(tmp_path) is None


def test_a_folder_without_config_gives_nothing(tmp_path: Path) -> None:
    assert read_model_facts(tmp_path) is None


@pytest.mark.parametrize(("file", "content"), [("config.json", b"{"), ("model.safetensors", b"\x05\0\0\0\0\0\0\0{...}")])
def test_damage_is_told(tmp_path: Path, file: str, content: bytes) -> None:
    write_model(tmp_path, CONFIG, {"a": [1]})
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError, match=r"has a damaged config.json or .safetensors file .* copy it again"):
        read_model_facts(tmp_path)
