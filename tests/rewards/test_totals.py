import pytest

from headrace.rewards.functions import RewardFunction
from headrace.rewards.scoring import Failure
from headrace.rewards.totals import rollout_reward

FUNCTIONS = [RewardFunction(name="right", weight=0.7, call=print), RewardFunction(name="short", weight=0.3, call=print)]
RAISED = Failure(reason="raised", text="raised ValueError: no")


@pytest.mark.parametrize(
    ("outcomes", "total"),
    [([1.0, 1.0], 1.0), ([1.0, 0.0], 0.7), ([0.5, -1.0], 0.05), ([1.0, None], 0.7), ([None, 2.0], 0.6), ([None, None], None)],
)
def test_total_is_the_weighted_sum_of_what_applies(outcomes, total):
    reward = rollout_reward(FUNCTIONS, outcomes, "exclude")
    assert reward.total == (None if total is None else pytest.approx(total, abs=1e-12))
    assert reward.by_function == {"right": outcomes[0], "short": outcomes[1]}
    assert reward.error is None


@pytest.mark.parametrize(("on_failure", "total"), [("exclude", None), ("zero", 0.7)])
def test_failure_excludes_or_counts_zero(on_failure, total):
    reward = rollout_reward(FUNCTIONS, [1.0, RAISED], on_failure)
    assert reward.total == total
    assert reward.by_function == {"right": 1.0, "short": None}
    assert reward.error == "reward function 'short' raised ValueError: no"


def test_every_failure_is_named():
    assert rollout_reward(FUNCTIONS, [RAISED, RAISED], "zero").total == 0.0
    error = rollout_reward(FUNCTIONS, [RAISED, RAISED], "exclude").error
    assert error == "reward function 'right' raised ValueError: no; reward function 'short' raised ValueError: no"


def test_no_functions_give_no_total():
    assert rollout_reward([], [], "exclude").total is None
