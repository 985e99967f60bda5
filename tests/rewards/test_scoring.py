import asyncio
from array import array
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from headrace.rewards.functions import GroupArguments
from headrace.rewards.scoring import ContractBrokenError, Failure, GroupScorer


def score(call, *texts: str):
    """Outcomes, and how many attempts were announced."""
    attempts = []
    arguments = GroupArguments(prompt="", texts=texts, completion_ids=tuple(array("i", [1]) for _ in texts), columns={})
    with asyncio.Runner() as runner:
        outcomes = GroupScorer(runner, attempt_starts=lambda: attempts.append(None)).score(call, arguments)
    return outcomes, len(attempts)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
    ],
)
def test_all_kinds_of_numbers_are_values(value, number):
    outcomes, _ = score(lambda completions: [value], "a")
    assert outcomes == [number]
    assert type(outcomes[0]) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "1.0", [1.0], 1j, 10**400, {}])
def test_what_is_no_finite_number_fails_alone(value):
    (good, bad), num_attempts = score(lambda completions: [1.0, value], "a", "b")
    assert good == 1.0
    assert bad.reason == "not_a_number"
    assert "not a finite number" in bad.text
    assert num_attempts == 1


def test_lists_arrays_and_generators_of_values():
    assert score(lambda completions: np.array([1, 0]), "a", "b")[0] == [1.0, 0.0]
    assert score(lambda completions: (None, 2), "a", "b")[0] == [None, 2.0]
    assert score(lambda completions: (len(c) for c in completions), "a", "bb")[0] == [1.0, 2.0]


@pytest.mark.parametrize("result", [[], [1.0], [1.0] * 3, 1.0, None])
def test_wrong_number_of_values_breaks_the_contract(result):
    with pytest.raises(ContractBrokenError, match="for 2 completions"):
        score(lambda completions: result, "a", "b")


def test_one_bad_completion_does_not_take_its_siblings_down():
    outcomes, num_attempts = score(lambda completions: [1 / int(c) for c in completions], "1", "0", "4", "x")
    assert outcomes[0] == 1.0
    assert outcomes[2] == 0.25
    assert outcomes[1].text.startswith("raised ZeroDivisionError: division by zero")
    assert outcomes[3].text.startswith("raised ValueError: invalid literal")
    assert num_attempts == 5


def test_exit_is_a_failure_too():
    def leave(completions):
        raise SystemExit(3)

    (outcome,), _ = score(leave, "a")
    assert isinstance(outcome, Failure)
    assert outcome.text.startswith("raised SystemExit: 3 (")
    assert "test_scoring.py:" in outcome.text


def test_async_functions_share_one_event_loop():
    loops = []

    async def reward(completions):
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return [float(len(c)) for c in completions]

    arguments = GroupArguments(prompt="", texts=("abc",), completion_ids=(array("i", [1]),), columns={})
    with asyncio.Runner() as runner:
        scorer = GroupScorer(runner, attempt_starts=lambda: None)
        assert [scorer.score(reward, arguments) for _ in range(2)] == [[3.0], [3.0]]
    assert loops[0] is loops[1]
