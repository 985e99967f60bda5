import functools
import sys

import pytest
from config.recipes import recipe_with

from headrace.config.rewards import ExactNumber, MathVerify, PythonReward, ReasoningGym
from headrace.errors import RecipeError, RewardError
from headrace.rewards.building import build_reward_functions, check_rewards, wrap_reward_functions


@pytest.fixture(autouse=True)
def _own_sys_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_built_in_rewards(tmp_path):
    entry = {"answer": "3", "metadata": {"source_dataset": "basic_arithmetic"}}
    specs = [ExactNumber(answer_column="a", weight=0.5), MathVerify(answer_column="a"), ReasoningGym(weight=2)]
    functions = build_reward_functions(specs, base_folder=tmp_path)
    assert [(function.name, function.weight) for function in functions] == [
        ("exact_number", 0.5),
        ("math_verify", 1.0),
        ("reasoning_gym", 2.0),
    ]
    assert [function.call(completions=["3"], a=["3"], reasoning_gym_entry=[entry]) for function in functions] == [[1.0]] * 3


def test_python_rewards_beside_the_recipe_and_in_the_current_folder(tmp_path, monkeypatch):
    recipe_folder, current_folder = tmp_path / "recipe", tmp_path / "current"
    for folder, value in ((recipe_folder, 1), (current_folder, 2)):
        folder.mkdir()
        for name in ("both", f"only_{folder.name}"):
            (folder / f"{name}.py").write_text(f"def reward(completions): return [{value}]")
    monkeypatch.chdir(current_folder)
    names = ["both.py", "only_recipe.py", "only_current.py", "only_current"]
    specs = [PythonReward(function=f"{name}:reward") for name in names]
    functions = build_reward_functions(specs, base_folder=recipe_folder)
    assert [function.call(completions=[""]) for function in functions] == [[1], [1], [2], [2]]
    assert [function.name for function in functions] == ["reward", "reward_2", "reward_3", "reward_4"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("rewards.py:f", r"rewards.functions: there is no file 'rewards.py'; looked at .*rewards.py and "),
        ("no_such_module:f", "ModuleNotFoundError"),
    ],
)
def test_python_reward_that_cannot_be_found(tmp_path, function, message):
    with pytest.raises(RecipeError, match=message):
        build_reward_functions([PythonReward(function=function)], base_folder=tmp_path)


@pytest.mark.parametrize(("spec", "library", "extra"), [(MathVerify(), "math_verify", "math"), (ReasoningGym(), "reasoning_gym", "gym")])
def test_missing_library_says_what_to_install(tmp_path, monkeypatch, spec, library, extra):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"headrace.rewards.{library}", raising=False)
    with pytest.raises(RewardError, match=rf"pip install 'headrace\[{extra}\]'"):
        build_reward_functions([spec], base_folder=tmp_path)


def test_callables_get_readable_and_different_names():
    def length(completions): ...

    class Judge:
        def __call__(self, completions): ...

    calls = [length, lambda completions: ..., lambda completions: ..., functools.partial(length), Judge(), Judge().__call__]
    functions = wrap_reward_functions(calls, [1, 2, 3, 4, 5, 6])
    assert [function.name for function in functions] == ["length", "lambda", "lambda_2", "length_2", "Judge", "__call__"]
    assert [function.weight for function in functions] == [1, 2, 3, 4, 5, 6]
    assert wrap_reward_functions([length])[0].weight == 1.0


def test_names_stay_different_when_one_looks_numbered():
    def f_2(completions): ...

    def f(completions): ...

    assert [function.name for function in wrap_reward_functions([f_2, f, f])] == ["f_2", "f", "f_3"]


def test_wrong_arguments_are_refused():
    with pytest.raises(RewardError, match="must be callable, but 'accuracy' is not"):
        wrap_reward_functions(["accuracy"])
    with pytest.raises(RewardError, match="1 reward weights for 2 reward functions"):
        wrap_reward_functions([print, print], [1.0])


def test_shadows_that_learn_from_rewards_are_refused_where_there_are_none():
    distilled = {"algorithm": {"name": "distill"}, "teacher": {"type": "local", "name_or_path": "t"}, "rewards": {"functions": []}}
    check_rewards(recipe_with(**distilled, shadow={"algorithms": ["distill"]}))
    with pytest.raises(RecipeError, match=r"shadow\.algorithms: grpo, rloo would learn from rewards, but rewards\.functions is empty"):
        check_rewards(recipe_with(**distilled, shadow={"algorithms": ["grpo", "distill", "rloo"]}))
