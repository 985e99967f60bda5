"""`headrace check` finds what is missing before anything is loaded."""

import json
from pathlib import Path

import pytest

from headrace.cli.check import check_recipe
from headrace.config.loading import load_recipe
from headrace.config.recipe import Recipe
from headrace.errors import UserError

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def base_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data file and a tiny model's files; nothing is fetched, and commands run elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    rows = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    (model / "config.json").write_text(json.dumps(sizes))
    tensors = {"norm.weight": ([6], [0, 24]), "layers.0.q_proj.weight": ([2, 2], [24, 40])}
    header = json.dumps(
        {name: {"dtype": "F32", "shape": shape, "data_offsets": offsets} for name, (shape, offsets) in tensors.items()}
    ).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(40))
    return tmp_path


def recipe(base_folder: Path, *overrides: str) -> Recipe:
    path = base_folder / "r.toml"
    path.write_text(
        f"""
[run]
output_dir = "{base_folder}/run"
[model]
name_or_path = "{base_folder}/model"
[data]
source = {{type = "file", path = "rows.jsonl"}}
held_out = 4
[rewards]
functions = [{{type = "exact_number"}}]
[engine]
max_concurrent_sequences = 128
"""
    )
    return load_recipe(path, overrides)


def test_rows_are_counted_and_the_model_is_measured(base_folder: Path) -> None:
    plan, notes = check_recipe(recipe(base_folder), base_folder=base_folder)
    assert (plan.num_prompts, plan.steps, notes) == (16, 2, [])
    assert plan.memory is not None
    assert next(part.num_bytes for part in plan.memory.parts if part.name == "weights") == 40


def test_generated_problems_are_counted_without_generating_them(base_folder: Path) -> None:
    overrides = ("data.source={type='reasoning_gym', task='chain_sum', size=44}", "rewards.functions=[{type='reasoning_gym'}]")
    plan, _ = check_recipe(recipe(base_folder, *overrides), base_folder=base_folder)
    assert plan.num_prompts == 40


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rewards.functions=[]", "rewards.functions is empty, so nothing could be learned; add for instance [[rewards.functions]]"),
        ("data.source.path=none.jsonl", "data file 'none.jsonl' is missing"),
        ("data.prompt_column=question", "the data set has no column 'question'"),
        ("data.held_out=20", "data.held_out = 20 leaves nothing to train on"),
        ("model.name_or_path=nothing", "there is no model 'nothing'"),
        ("lora.target_modules=['query']", "lora.target_modules: query names no linear layer of the model"),
        ("rewards.functions=[{type='python', function='none.py:score'}]", "rewards.functions: there is no file 'none.py'"),
        ("algorithm.advantage={type='python', function='none.py:f'}", "algorithm.advantage.function: there is no file 'none.py'"),
        ("algorithm.surrogate={type='python', function='none.py:f'}", "algorithm.surrogate.function: there is no file 'none.py'"),
        (
            "shadow.algorithms=[{name='grpo', label='mine', surrogate={type='python', function='none.py:f'}}]",
            "algorithm.surrogate.function: there is no file 'none.py'",
        ),
        ("data.source={type='python', function='none.py:rows'}", "data.source.function: there is no file 'none.py'"),
        (
            "rewards.functions=[{type='exact_number', answer_column='solution'}]",
            "the data has no column 'solution', which the reward 'exact_number' compares with; its columns are prompt, answer; "
            "set answer_column of rewards.functions",
        ),
    ],
)
def test_what_is_missing_is_named(base_folder: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_recipe(recipe(base_folder, override), base_folder=base_folder)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["algorithm.name=distill", "teacher.type=local", "teacher.name_or_path=./nowhere"], "teacher.name_or_path"),
        (["algorithm.name=ppo", "algorithm.critic.name_or_path=./nowhere"], "algorithm.critic.name_or_path"),
    ],
)
def test_a_missing_model_is_told_with_the_key_that_names_it(base_folder: Path, overrides: list[str], key: str) -> None:
    with pytest.raises(UserError, match=rf"there is no model '\./nowhere'.*; set {key} to a Hugging Face model folder"):
        check_recipe(recipe(base_folder, *overrides), base_folder=base_folder)


def test_a_cut_off_model_is_found(base_folder: Path) -> None:
    weights = base_folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        check_recipe(recipe(base_folder), base_folder=base_folder)


@pytest.mark.parametrize(
    ("override", "note"),
    [
        ("run.output_dir=..", "run.output_dir = '..' exists: training needs --resume or another folder"),
        (
            "model.name_or_path=SmolLM2-135M-Instruct",
            "model SmolLM2-135M-Instruct is fetched when training starts (93 MB); headrace models SmolLM2-135M-Instruct does it now",
        ),
        ("model.name_or_path=org/name", "model 'org/name' is taken from the Hugging Face hub, which was not asked"),
    ],
)
def test_what_is_worth_knowing_is_noted(base_folder: Path, override: str, note: str) -> None:
    _, notes = check_recipe(recipe(base_folder, override), base_folder=base_folder)
    assert notes == [note]


def test_a_missing_extra_is_named(base_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        check_recipe(recipe(base_folder, "telemetry.report_to=['wandb']"), base_folder=base_folder)
    assert str(caught.value) == (
        "telemetry.report_to = 'wandb' needs the package wandb, which is not installed; run pip install 'headrace[wandb]'"
    )


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_checks_without_a_warning(base_folder: Path, path: Path) -> None:
    teacher = Path("runs/quickstart/final")  # what recipes/distill.toml learns from is there after recipes/quickstart.toml
    teacher.parent.mkdir(parents=True)
    (base_folder / "model").rename(teacher)
    plan, _ = check_recipe(load_recipe(path), base_folder=RECIPES)
    assert plan.warnings == ()
    assert plan.num_prompts is not None


def test_recipes_are_shipped() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} >= {"quickstart", "sync", "periodic", "decoupled", "reasoning_gym"}
