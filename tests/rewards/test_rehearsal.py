import time

import pytest
from rewards.examples import prompt, with_service

from headrace.errors import RewardError
from headrace.rewards.rehearsal import rehearse


def rehearsed(*calls, **options) -> None:
    with_service(lambda service: rehearse(service, [prompt(answer="3")]), *calls, **options)


def test_good_functions_pass():
    rehearsed(lambda completions: [1.0, None], lambda answer, **_: [float(a) for a in answer])


def test_function_that_fails_for_one_placeholder_passes():
    """What to do about odd completions is the recipe's `on_failure`; only a function that never works is refused."""
    rehearsed(lambda completions: [float(c) for c in completions])


@pytest.mark.parametrize("on_failure", ["exclude", "zero"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda completions: 1 / 0, "'lambda' raised ZeroDivisionError: division by zero .*on prompt 7"),
        (lambda completions, solution: [1.0], "'lambda' raised TypeError: it needs 'solution', but there is only 'answer'"),
        (lambda completions: [float("nan")] * len(completions), "'lambda' returned nan"),
        (lambda completions: [1.0] * 3, "'lambda' returned 3 values for 2 completions"),
        (lambda completions: time.sleep(60), "'lambda' ran longer than time_limit_seconds = 0.5"),
    ],
)
def test_broken_function_is_named_before_training(call, message, on_failure):
    with pytest.raises(RewardError, match=message):
        rehearsed(call, on_failure=on_failure, time_limit_seconds=0.5)
