import importlib.util
import json
from pathlib import Path

import pytest
import torch
from adapters import randomise
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_runs import make_inputs, tiny_recipe
from transformers import AutoModelForCausalLM, PreTrainedModel

from headrace.cli.main import main
from headrace.config.lora import LoraSection
from headrace.errors import ModelError, RecipeError, RunFolderError
from headrace.launch.adapters import add_adapter, base_of_adapter, is_adapter_folder, linear_layers, load_adapter, merge_adapter
from headrace.launch.export import export
from headrace.launch.inputs import check_inputs, inputs_of_recipe
from headrace.launch.model_loading import load_config
from headrace.launch.policy import load_for_evaluation, load_policy_and_prompts
from headrace.training.adapter import WEIGHTS_FILE, learning_parameters
from headrace.training.checkpoint import save_policy
from headrace.training.snapshot_scorer import SNAPSHOT_FILE

IDS = torch.tensor([[3, 9, 1, 4]])
LORA = LoraSection(rank=2, alpha=3)
QUIET = Console(quiet=True)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make_inputs(tmp_path)
    return tmp_path / "model"


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def saved_adapter(base: Path, folder: Path) -> PreTrainedModel:
    """An adapter of random numbers in a folder, and in its base."""
    model = load(base)
    add_adapter(model, LORA, base=base, seed=0)
    randomise(model, seed=1, size=0.3)
    save_policy(model, folder)
    return model


def test_a_new_adapter_changes_nothing_and_depends_on_the_seed_alone(base: Path) -> None:
    models = [load(base) for _ in range(3)]
    state = torch.get_rng_state()
    for model, seed in zip(models, (4, 4, 5), strict=True):
        add_adapter(model, LORA, base=base, seed=seed)
        torch.testing.assert_close(logits(model), logits(load(base)), rtol=0, atol=0)
    assert torch.equal(state, torch.get_rng_state())
    first, same, other = (learning_parameters(model) for model in models)
    name = "model.layers.0.mlp.up_proj.lora_A.default.weight"
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize(
    ("targets", "layers"), [("all-linear", 14), (["q_proj", "v_proj"], 4), (["mlp.up_proj"], 2), (["layers.1.self_attn.o_proj"], 1)]
)
def test_targets(targets: str | list[str], layers: int, base: Path) -> None:
    model = load(base)
    add_adapter(model, LoraSection(rank=2, target_modules=targets), base=base, seed=0)
    assert len(learning_parameters(model)) == 2 * layers
    assert not [name for name in learning_parameters(model) if "lm_head" in name]


def test_linear_layers_are_known_without_weights_as_all_that_is_adapted(base: Path) -> None:
    (base / "model.safetensors").rename(base.with_name("weights"))
    layers = linear_layers(load_config(base))
    base.with_name("weights").rename(base / "model.safetensors")
    model = load(base)
    add_adapter(model, LORA, base=base, seed=0)
    assert {f"{layer}.lora_A.default.weight" for layer in layers} == {name for name in learning_parameters(model) if "lora_A" in name}


def test_an_attention_kernel_that_the_folder_names_is_not_asked_for(base: Path) -> None:
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**settings, "attn_implementation": "flash_attention_2"}))
    assert len(linear_layers(load_config(base))) == 14


def test_an_adapter_comes_back_from_its_folder(base: Path, tmp_path: Path) -> None:
    model, other = saved_adapter(base, tmp_path / "adapter"), load(base)
    assert is_adapter_folder(tmp_path / "adapter")
    assert base_of_adapter(tmp_path / "adapter") == base.resolve()
    load_adapter(other, tmp_path / "adapter", base=base)
    torch.testing.assert_close(logits(other), logits(model), rtol=0, atol=0)
    assert (logits(model) - logits(load(base))).abs().max() > 0.01


def test_merging_gives_the_same_logits_from_a_plain_model(base: Path, tmp_path: Path) -> None:
    model = saved_adapter(base, tmp_path / "adapter")
    expected = logits(model)
    merge_adapter(model)
    assert model.state_dict().keys() == load(base).state_dict().keys()
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-6)


def rewrite_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_base_that_moved_is_looked_for_by_its_packaged_name_then_in_the_recipe(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_adapter(base, tmp_path / "adapter")
    rewrite_config(tmp_path / "adapter", base_model_name_or_path="/gone/tiny")
    with pytest.raises(ModelError, match=r"there is no model '/gone/tiny'"):
        base_of_adapter(tmp_path / "adapter")
    assert base_of_adapter(tmp_path / "adapter", fallback=str(base)) == base
    monkeypatch.setattr("headrace.launch.adapters.PACKAGED_MODELS", {"model": None})
    rewrite_config(tmp_path / "adapter", base_model_name_or_path="/gone/model")
    monkeypatch.chdir(tmp_path)
    assert base_of_adapter(tmp_path / "adapter") == Path("model")


@pytest.mark.parametrize("changes", [{"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}])
def test_other_kinds_of_adapters_are_refused(changes: dict[str, object], base: Path, tmp_path: Path) -> None:
    saved_adapter(base, tmp_path / "adapter")
    rewrite_config(tmp_path / "adapter", **changes)
    with pytest.raises(ModelError, match="is not plain LoRA"):
        load_adapter(load(base), tmp_path / "adapter", base=base)


@pytest.mark.filterwarnings("ignore:Unexpected keyword arguments:UserWarning")
def test_a_damaged_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    saved_adapter(base, tmp_path / "adapter")
    weights = tmp_path / "adapter" / WEIGHTS_FILE
    tensors = {name: tensor.clone() for name, tensor in load_file(weights).items()}
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match="cannot be read"):
        load_adapter(load(base), tmp_path / "adapter", base=base)
    tensors.pop("base_model.model.model.layers.1.mlp.up_proj.lora_A.weight")
    save_file(tensors, weights)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.lora_A\.default\.weight is missing"):
        load_adapter(load(base), tmp_path / "adapter", base=base)
    (tmp_path / "adapter" / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        base_of_adapter(tmp_path / "adapter")


def test_an_adapter_is_no_model_to_train(base: Path, tmp_path: Path) -> None:
    saved_adapter(base, tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"is an adapter, not a whole model; make one with headrace export"):
        load_policy_and_prompts(
            tiny_recipe(tmp_path, model={"name_or_path": str(tmp_path / "adapter")}), [{"prompt": "what is 1"}], console=QUIET
        )


def test_without_peft_a_recipe_with_an_adapter_is_refused_before_the_model_loads(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recipe = tiny_recipe(tmp_path, lora={"rank": 2})
    with pytest.raises(RecipeError, match=r"\[lora\] needs the package peft, which is not installed; run pip install 'headrace\[lora\]'"):
        check_inputs(inputs_of_recipe(recipe, base_folder=tmp_path), recipe)


def test_a_policy_with_an_adapter_or_as_it_is(base: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "what is 1"}]
    recipe = tiny_recipe(tmp_path, lora={"rank": 2})
    expected = saved_adapter(base, tmp_path / "adapter")
    assert len(learning_parameters(load_policy_and_prompts(recipe, rows, console=QUIET).model)) == 28
    assert not hasattr(load_for_evaluation(recipe, rows, model_path=str(base)).model, "peft_config")
    found = load_for_evaluation(tiny_recipe(tmp_path), rows, model_path=str(tmp_path / "adapter")).model
    torch.testing.assert_close(logits(found), logits(expected), rtol=0, atol=0)


def test_an_exported_adapter_is_a_whole_model(base: Path, tmp_path: Path) -> None:
    expected = logits(saved_adapter(base, tmp_path / "adapter"))
    export(tmp_path / "adapter", tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), expected, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert not is_adapter_folder(tmp_path / "out")
    assert not (tmp_path / "out.partial").exists()


def test_an_exported_checkpoint_of_all_weights_is_a_copy_without_the_runs_state(base: Path, tmp_path: Path) -> None:
    of_the_run = {"optimizer.pt", SNAPSHOT_FILE}
    for name in of_the_run:
        (base / name).touch()
    export(base, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {file.name for file in base.iterdir()} - of_the_run


@pytest.mark.parametrize(("source", "message"), [("run", "the run has not finished"), ("absent", "is not a model folder")])
def test_what_cannot_be_exported(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("[model]\nname_or_path = 'a'\n")
    with pytest.raises(ModelError, match=message):
        export(tmp_path / source, tmp_path / "out")


@pytest.mark.parametrize("what", ["a file", "a folder with a file"])
def test_what_is_there_is_not_overwritten(what: str, base: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" if what == "a file" else tmp_path / "out" / "notes.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(RunFolderError, match="out exists already, and exporting would overwrite it; choose another folder"):
        export(base, tmp_path / "out")
    assert file.read_text() == "mine"


def test_the_command(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", "export", str(base), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out.strip() == f"the model is in {tmp_path / 'out'}"
    assert (tmp_path / "out" / "model.safetensors").is_file()
