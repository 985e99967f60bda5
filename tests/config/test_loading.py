"""Every rule of a recipe, by the exact message that a person gets."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.config.loading import dump_recipe, load_recipe, parse_recipe
from headrace.config.recipe import Recipe
from headrace.errors import RecipeError

SMALLEST = """
[run]
output_dir = "runs/x"
[model]
name_or_path = "m"
[data]
source = {type = "file", path = "a.jsonl"}
"""


def load(folder: Path, text: str = "", *overrides: str) -> Recipe:
    path = folder / "r.toml"
    path.write_text(SMALLEST + text, encoding="utf-8")
    return load_recipe(path, overrides)


def complaint(folder: Path, *overrides: str, text: str = "") -> str:
    """The message without the recipe's path and overrides in front; always one line."""
    with pytest.raises(RecipeError) as caught:
        load(folder, text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    origin = f"{folder / 'r.toml'} with {' '.join(overrides)}: " if overrides else f"{folder / 'r.toml'}: "
    assert message.startswith(origin)
    return message.removeprefix(origin)


def test_the_smallest_recipe_takes_every_default(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert (recipe.schedule.type, recipe.slots, recipe.completions_per_step) == ("async", 16, 64)


def test_overrides_are_toml_or_a_bare_word_and_the_last_one_wins(tmp_path: Path) -> None:
    recipe = load(
        tmp_path,
        "",
        "training.max_steps=3",
        "training.max_steps=7",
        "engine.dtype=bfloat16",
        "sampling.stop_strings=['a', 'b']",
        "schedule.type=async",
        "schedule.max_staleness = 2",
    )
    assert recipe.training.max_steps == 7
    assert recipe.engine.dtype == "bfloat16"
    assert recipe.sampling.stop_strings == ["a", "b"]
    assert recipe.schedule.max_staleness == 2


def test_an_override_of_the_type_drops_the_keys_of_the_old_type(tmp_path: Path) -> None:
    recipe = load(tmp_path, "[schedule]\ntype = 'async'\nmax_staleness = 3\nslots = 9\n", "schedule.type=sync")
    assert (recipe.schedule.type, recipe.schedule.max_staleness, recipe.slots) == ("sync", 0, 8)


def test_an_override_of_the_type_keeps_the_keys_that_both_types_have(tmp_path: Path) -> None:
    text = "[algorithm]\nname = 'a3po'\n[algorithm.correction]\ntype = 'mis'\nlevel = 'geometric'\nhigh = 3.0\n"
    recipe = load(tmp_path, text, "algorithm.correction.type=icepop")
    assert recipe.algorithm.correction.model_dump() == {"type": "icepop", "low": 0.5, "high": 3.0}


def test_a_dumped_recipe_loads_to_an_equal_one(tmp_path: Path) -> None:
    recipe = load(
        tmp_path,
        "[algorithm]\nname = 'areal'\nsurrogate = {epsilon_high = 0.3}\n[rewards]\nfunctions = [{type = 'exact_number'}]\n",
    )
    (tmp_path / "resolved.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "resolved.toml") == recipe


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert load(tmp_path, "", "algorithm.beta=1").algorithm.beta == 1.0


CASES = [
    # Keys that do not exist.
    ("training.lerning_rate=1", "unknown key 'training.lerning_rate'; did you mean 'training.learning_rate'?"),
    ("trainig.max_steps=1", "unknown key 'trainig'; did you mean 'training'?"),
    ("training.epsilon=0.3", "unknown key 'training.epsilon'; did you mean 'algorithm.surrogate.epsilon'?"),
    ("run.max_step=3", "unknown key 'run.max_step'; did you mean 'training.max_steps'?"),
    ("run.zzz=1", "unknown key 'run.zzz'; known keys: output_dir, seed, stall_seconds"),
    ("data.source.name='x'", "unknown key 'data.source.name'; type 'file' does not have it, 'hub' does"),
    (
        "rewards.functions=[{type='exact_number', wight=2.0}]",
        "unknown key 'rewards.functions.0.wight'; did you mean 'rewards.functions.0.weight'?",
    ),
    (
        "rewards.functions=[{type='reasoning_gym', answer_column='a'}]",
        "unknown key 'rewards.functions.0.answer_column'; type 'reasoning_gym' does not have it, 'exact_number' and 'math_verify' do",
    ),
    # Values of another type.
    ("training.max_steps=abc", 'training.max_steps must be a whole number (given: "abc")'),
    ("training.max_steps=1.0", "training.max_steps must be a whole number (given: 1.0)"),
    ("training.max_steps=true", "training.max_steps must be a whole number (given: true)"),
    ("training.learning_rate='1e-5'", 'training.learning_rate must be a number (given: "1e-5")'),
    ("training.learning_rate=inf", "training.learning_rate must be a finite number (given: Infinity)"),
    ("data.shuffle=1", "data.shuffle must be true or false (given: 1)"),
    ("run.output_dir=3", "run.output_dir must be text (given: 3)"),
    ("sampling.stop_strings=x", 'sampling.stop_strings must be a list (given: "x")'),
    ("data.source={type='reasoning_gym', task='t', parameters=3}", "data.source.parameters must be a table (given: 3)"),
    ("engine.threads=many", "engine.threads must be 'auto' or a whole number (given: \"many\")"),
    (
        "data.source={type='reasoning_gym', task='t', parameters={size=[inf]}}",
        "data.source.parameters.size must be a finite number (given: Infinity)",
    ),
    # Values out of range.
    ("training.max_steps=0", "training.max_steps must be at least 1 (given: 0)"),
    ("training.learning_rate=0.0", "training.learning_rate must be above 0 (given: 0.0)"),
    ("algorithm.surrogate.epsilon=1.0", "algorithm.surrogate.epsilon must be below 1 (given: 1.0)"),
    (
        "algorithm.name=[1]",
        "algorithm.name must be 'grpo', 'dr_grpo', 'dapo', 'gspo', 'cispo', 'sapo', 'm2po', 'rloo', 'reinforce_pp', 'opo', 'ppo', 'areal', "
        "'a3po' or 'distill' (given: [1])",
    ),
    ("evaluation.top_p=1.5", "evaluation.top_p must be at most 1 (given: 1.5)"),
    ("engine.threads=0", "engine.threads must be 'auto' or at least 1 (given: 0)"),
    ("engine.dtype=fp8", "engine.dtype must be 'auto', 'float32' or 'bfloat16' (given: \"fp8\")"),
    ("model.name_or_path=''", 'model.name_or_path must be text that is not empty (given: "")'),
    (
        "run.seed=2147483648",
        "run.seed: 2147483648 is larger than 2147483647, the largest whole number that fits 32 bits; choose a smaller one",
    ),
    # Alternatives without their type, or with an unknown one.
    (
        "schedule.max_staleness=3",
        "schedule is given without schedule.type, which must be one of 'sync', 'periodic', 'async'; max_staleness fits 'async'",
    ),
    (
        "algorithm.surrogate.ratio_cap=3.0",
        "unknown key 'algorithm.surrogate.ratio_cap'; type 'clip' does not have it, 'cispo' does",
    ),
    ("schedule.type=asinc", "schedule.type must be one of 'sync', 'periodic', 'async' (given: \"asinc\")"),
    (
        "algorithm.correction=tis",
        "algorithm.correction must be a table with a type, one of 'none', 'tis', 'mis', 'icepop' (given: \"tis\")",
    ),
    # Names of functions, and templates.
    (
        "data.source={type='python', function='rows.py'}",
        "data.source.function: 'rows.py' does not name a function; write 'package.module:function' or 'path/to/file.py:function'",
    ),
    ("data.prompt_template='What?'", "data.prompt_template: 'What?' must name its columns, for instance 'What is {a} + {b}?'"),
    ("data.prompt_template='{}'", "data.prompt_template: '{}' must name its columns, for instance 'What is {a} + {b}?'"),
    (
        "data.prompt_template='a {'",
        "data.prompt_template: 'a {' is not a format string: Single '{' encountered in format string; write {{ and }} for braces that stay",
    ),
]


@pytest.mark.parametrize(("override", "message"), CASES)
def test_one_line_says_what_is_wrong_and_what_to_write(tmp_path: Path, override: str, message: str) -> None:
    assert complaint(tmp_path, override) == message


def test_several_problems_are_all_told(tmp_path: Path) -> None:
    expected = "run.seed must be at least 0 (given: -1); training.max_steps must be at least 1 (given: 0)"
    assert complaint(tmp_path, "training.max_steps=0", "run.seed=-1") == expected


def test_long_values_are_shortened(tmp_path: Path) -> None:
    assert complaint(tmp_path, f"training.max_steps={'x' * 100}") == f'training.max_steps must be a whole number (given: "{"x" * 56}...)'


def test_missing_sections_and_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^here: run.output_dir is missing and has no default; section \[model\] is missing$"):
        parse_recipe({"run": {}, "data": {"source": {"type": "file", "path": "a"}}}, origin="here")


def test_a_section_that_is_no_table(tmp_path: Path) -> None:
    table = {"run": 3, "model": {"name_or_path": "m"}, "data": {"source": {"type": "file", "path": "a"}}}
    with pytest.raises(RecipeError, match=r"^here: run must be a table \(given: 3\)$"):
        parse_recipe(table, origin="here")


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(RecipeError) as caught:
        load_recipe(missing)
    assert str(caught.value) == f"there is no recipe {str(missing)!r}; give the path of a .toml file"


def test_a_folder_instead_of_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path)
    assert str(caught.value) == f"{str(tmp_path)!r} is a folder; give the path of a .toml file in it"


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[run\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "r.toml")
    assert (
        str(caught.value)
        == f"{tmp_path / 'r.toml'} is not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 5)"
    )


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=r"r\.toml is not valid TOML: 'utf-8' codec can't decode"):
        load_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("max_steps=3", "did you mean 'training.max_steps'?"),
        ("lr=3", "here it is training.learning_rate"),
        ("data=3", "write for instance training.max_steps=10"),
        ("training.max_steps", "did you mean 'training.max_steps'?"),
        ("training.=3", "write for instance training.max_steps=10"),
    ],
)
def test_overrides_of_another_form(tmp_path: Path, override: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, "", override)
    assert str(caught.value) == f"override {override!r} is not of the form section.key=value; {hint}"


def test_an_override_into_a_value(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, "", "run.output_dir.x=1")
    assert str(caught.value) == "override 'run.output_dir.x=1' goes into 'output_dir', which is not a table but 'runs/x'"


SOME_KEYS = {
    "source",
    "type",
    "path",
    "functions",
    "weight",
    "name",
    "surrogate",
    "correction",
    "threads",
    "parameters",
    "max_staleness",
    "beta",
    "seed",
    "stop_strings",
}
NAMES = st.sampled_from(sorted(set(Recipe.model_fields) | SOME_KEYS | {"async", "dapo", "icepop", "file", "0", "lr", "naïve key"}))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | NAMES | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def recipe_or_message(table: dict[str, object]) -> Recipe | str:
    try:
        return parse_recipe(table, origin="here")
    except RecipeError as error:
        return str(error)


@example({"checkpoint": "\x85"})
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_is_written_is_a_recipe_or_one_line(table: dict[str, object]) -> None:
    smallest = {"run": {"output_dir": "x"}, "model": {"name_or_path": "m"}, "data": {"source": {"type": "file", "path": "a"}}}
    outcome = recipe_or_message(smallest | table)
    if isinstance(outcome, Recipe):
        assert parse_recipe(tomllib.loads(dump_recipe(outcome)), origin="dumped") == outcome
    else:
        assert outcome.startswith("here: ")
        assert len(outcome.splitlines()) == 1
