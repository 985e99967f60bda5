"""Every advantage that a recipe can name, from the recipe to the numbers of tokens."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batching.groups import rollout, scored_group
from tiny_runs import tiny_recipe

from headrace.errors import RecipeError, RewardError
from headrace.launch.credit import make_credit, make_group_rules, user_surrogate
from headrace.types import ScoredGroup

# log π_behave is -0.5 for every token. Rewards 1 and 0 with 1 and 3 tokens; then twice the same, with 1 and 1.
GROUPS = [scored_group(0, [rollout(1), rollout(3)], [1.0, 0.0]), scored_group(1, [rollout(1), rollout(1)], [0.5, 0.5])]
USER_FUNCTIONS = """
import numpy as np

def halves(rewards, lengths):
    return [[None if reward is None else reward / 2 for reward in group] for group in rewards]

def longest(rewards, lengths):
    return [[float(length) for length in group] for group in lengths]

def numpy_numbers(rewards, lengths):
    return [list(np.array(group, np.float32)) for group in rewards]

def too_few(rewards, lengths):
    return [group[:1] for group in rewards]

def one_list(rewards, lengths):
    return [reward for group in rewards for reward in group]

def not_finite(rewards, lengths):
    return [[float("nan") for _ in group] for group in rewards]

def nothing(rewards, lengths):
    return None

def text(rewards, lengths):
    return ["ab" for _ in rewards]

def number_for_none(rewards, lengths):
    return [[0.0 for _ in group] for group in rewards]

def losses(ratio, logprobs, advantages):
    return -ratio * advantages

not_callable = 3
"""


def credit_of(folder: Path, **algorithm: Any) -> Any:
    recipe = tiny_recipe(folder, algorithm=algorithm)
    return make_credit(recipe.algorithm, max_completion_length=recipe.sampling.max_completion_length, base_folder=folder)


def first_tokens(credit: Any, groups: list[ScoredGroup] = GROUPS) -> list[list[float | None]]:
    """Of each rollout's first token."""
    return [[None if array is None else float(array[0]) for array in group] for group in credit(groups)]


def user_function(folder: Path, name: str) -> dict[str, Any]:
    (folder / "mine.py").write_text(USER_FUNCTIONS)
    return {"type": "python", "function": f"mine.py:{name}"}


GROUP_STD, BATCH_STD = math.sqrt(0.5), math.sqrt(0.5 / 3)
WHITE_MEAN, WHITE_STD = 2 / 6, math.sqrt((1 + 2 * 0.25) / 6 - (2 / 6) ** 2)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ({"type": "group"}, [[0.5 / GROUP_STD, -0.5 / GROUP_STD], [0.0, 0.0]]),
        ({"type": "group", "ddof": 0}, [[1.0, -1.0], [0.0, 0.0]]),
        ({"type": "group", "scale_epsilon": 1.0, "ddof": 0}, [[0.5 / 1.5, -0.5 / 1.5], [0.0, 0.0]]),
        ({"type": "group", "scale_rewards": "none"}, [[0.5, -0.5], [0.0, 0.0]]),
        ({"type": "group", "scale_rewards": "batch"}, [[0.5 / BATCH_STD, -0.5 / BATCH_STD], [0.0, 0.0]]),
        ({"type": "leave_one_out"}, [[1.0, -1.0], [0.0, 0.0]]),
        ({"type": "length_weighted"}, [[0.75, -0.25], [0.0, 0.0]]),
        ({"type": "pass_at_k", "k": 1}, [[1.0, -1.0], [0.0, 0.0]]),
        ({"type": "whitened"}, [[(1 - WHITE_MEAN) / WHITE_STD, -WHITE_MEAN / WHITE_STD], [(0.5 - WHITE_MEAN) / WHITE_STD] * 2]),
    ],
)
def test_every_advantage_by_its_name(tmp_path: Path, advantage: dict[str, Any], expected: list[list[float]]) -> None:
    found = first_tokens(credit_of(tmp_path, advantage=advantage))
    assert found == [pytest.approx(group, rel=1e-3) for group in expected]


def test_whitening_after_the_groups_baseline(tmp_path: Path) -> None:
    """Tokens 0.5, -0.5 three times, 0 twice."""
    mean, deviation = -1 / 6, math.sqrt(1 / 6 - 1 / 36)
    found = first_tokens(credit_of(tmp_path, advantage={"type": "whitened", "baseline": "group"}))
    expected = [[(0.5 - mean) / deviation, (-0.5 - mean) / deviation], [-mean / deviation] * 2]
    assert found == [pytest.approx(group, rel=1e-3) for group in expected]


def test_a_critic_is_given_what_is_earned_at_each_token(tmp_path: Path) -> None:
    [[first, second], _] = credit_of(tmp_path, name="ppo")([scored_group(0, [rollout(1), rollout(3)], [1.0, 0.5]), GROUPS[1]])
    assert (first.tolist(), second.tolist()) == ([1.0], [0.0, 0.0, 0.5])


def test_a_teacher_alone(tmp_path: Path) -> None:
    group = replace(GROUPS[0], teacher_logprobs=(np.array([-0.25], np.float32), np.array([-1.5, -0.5, 0.0], np.float32)))
    recipe = tiny_recipe(tmp_path)
    algorithm = type(recipe.algorithm).model_validate({"name": "distill", "distillation_coefficient": 2.0})
    [[first, second]] = make_credit(algorithm, max_completion_length=8, base_folder=tmp_path)([group])
    assert (first.tolist(), second.tolist()) == ([0.5], [-2.0, 0.0, 1.0])


@pytest.mark.parametrize(("estimator", "penalty"), [("k1", 1.0), ("k2", 0.5), ("k3", math.exp(-1) - 1 + 1)])
def test_the_kl_penalty_is_taken_off_the_reward_of_each_token(tmp_path: Path, estimator: str, penalty: float) -> None:
    """log π_reference is 1 below log π_behave at the first of three tokens, and the same at the others."""
    group = replace(GROUPS[0], reference_logprobs=(np.array([-0.5], np.float32), np.array([-1.5, -0.5, -0.5], np.float32)))
    credit = credit_of(tmp_path, name="ppo", beta=0.1, kl_in="reward", kl_estimator=estimator)
    [[first, second]] = credit([group])
    assert first.tolist() == [1.0]
    assert second.tolist() == pytest.approx([-0.1 * penalty, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_far_apart_policies_give_a_finite_penalty(tmp_path: Path, estimator: str) -> None:
    group = replace(GROUPS[0], reference_logprobs=(np.array([-0.5], np.float32), np.array([400.0, -400.0, -0.5], np.float32)))
    [advantages] = credit_of(tmp_path, name="ppo", beta=1.0, kl_in="reward", kl_estimator=estimator)([group])
    assert all(bool(np.isfinite(array).all()) for array in advantages)


def test_overlong_answers_lose_up_to_1_over_the_last_part_of_the_limit(tmp_path: Path) -> None:
    """A quarter of 8 tokens: the penalty begins behind the sixth."""
    group = scored_group(0, [rollout(6), rollout(7), rollout(8)], [1.0, 1.0, 1.0])
    credit = credit_of(tmp_path, advantage={"scale_rewards": "none"}, overlong_buffer_share=0.25)
    assert first_tokens(credit, [group]) == [pytest.approx([0.5, 0.0, -0.5])]


def test_truncated_completions_can_be_left_out(tmp_path: Path) -> None:
    group = scored_group(0, [rollout(1), rollout(1), rollout(8, "length")], [1.0, 0.0, 9.0])
    assert first_tokens(credit_of(tmp_path, advantage={"scale_rewards": "none"}, mask_truncated_completions=True), [group]) == [
        [0.5, -0.5, None]
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("halves", [[0.5, 0.0], [0.25, 0.25]]), ("longest", [[1.0, 3.0], [1.0, 1.0]]), ("numpy_numbers", [[1.0, 0.0], [0.5, 0.5]])],
)
def test_a_function_of_the_users_own(tmp_path: Path, name: str, expected: list[list[float]]) -> None:
    assert first_tokens(credit_of(tmp_path, advantage=user_function(tmp_path, name))) == expected


def test_a_users_function_sees_which_rollouts_take_no_part(tmp_path: Path) -> None:
    groups = [scored_group(0, [rollout(1), rollout(1)], [1.0, None])]
    assert first_tokens(credit_of(tmp_path, advantage=user_function(tmp_path, "halves")), groups) == [[0.5, None]]
    with pytest.raises(RewardError, match="None for each None"):
        credit_of(tmp_path, advantage=user_function(tmp_path, "number_for_none"))(groups)


@pytest.mark.parametrize("name", ["too_few", "one_list", "not_finite", "nothing", "text"])
def test_what_a_users_function_may_not_return(tmp_path: Path, name: str) -> None:
    credit = credit_of(tmp_path, advantage=user_function(tmp_path, name))
    with pytest.raises(
        RewardError, match=rf"algorithm.advantage.function = 'mine.py:{name}' returned .* it must return one list for each group"
    ):
        credit(GROUPS)


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing", "mine.py has no function 'missing'"), ("not_callable", r"mine.py has as 'not_callable' 3, which cannot be called")],
)
def test_functions_that_cannot_be_imported(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"algorithm.advantage.function: .*{message}"):
        credit_of(tmp_path, advantage=user_function(tmp_path, name))
    with pytest.raises(RecipeError, match=f"algorithm.surrogate.function: .*{message}"):
        user_surrogate(tiny_recipe(tmp_path, algorithm={"surrogate": user_function(tmp_path, name)}).algorithm, base_folder=tmp_path)


def test_files_and_modules_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"algorithm.advantage.function: there is no file 'none.py'; looked at "):
        credit_of(tmp_path, advantage={"type": "python", "function": "none.py:f"})
    with pytest.raises(RecipeError, match=r"algorithm.advantage.function: no_such_module:f cannot be imported: ModuleNotFound"):
        credit_of(tmp_path, advantage={"type": "python", "function": "no_such_module:f"})


def test_the_users_surrogate_is_imported(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, algorithm={"surrogate": user_function(tmp_path, "losses")})
    function = user_surrogate(recipe.algorithm, base_folder=tmp_path)
    assert function is not None
    assert function(2.0, None, 3.0) == -6.0
    assert user_surrogate(tiny_recipe(tmp_path).algorithm, base_folder=tmp_path) is None


def test_which_groups_are_trained_on(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, algorithm={"name": "dapo", "max_groups_without_signal": 7}, rewards={"max_failed_groups": 3})
    rules = make_group_rules(recipe, credit_of(tmp_path, name="dapo"))
    assert rules.has_signal is not None
    assert [rules.has_signal(group) for group in GROUPS] == [True, False]
    assert (rules.min_scored, rules.max_failed_groups, rules.max_groups_without_signal) == (2, 3, 7)
    assert make_group_rules(tiny_recipe(tmp_path), credit_of(tmp_path)).has_signal is None
