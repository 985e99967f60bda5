import pytest
from telemetry.small_events import ledger

from headrace.controller.untrained import untrained


@pytest.mark.parametrize(
    ("discarded", "message"),
    [
        (
            {"no_signal": 7, "reward_failed": 0},
            "the prompts ended without a training step, because all 7 groups were discarded: 7 had rewards that tell none of their "
            "rollouts apart, which algorithm.dynamic_sampling leaves out; take easier or harder prompts, more rollouts a prompt "
            "(algorithm.num_generations), or a reward with more values",
        ),
        (
            {"reward_failed": 2, "no_reward": 1},
            "the prompts ended without a training step, because all 3 groups were discarded: 2 had too few scored rollouts, because "
            "reward functions failed, 1 had too few scored rollouts, because no reward function applied (all returned None); mend the "
            "reward functions, whose errors are in the run's events.jsonl, and add a reward function that applies to these prompts",
        ),
    ],
)
def test_every_reason_is_told_with_what_to_do_about_it(discarded: dict[str, int], message: str) -> None:
    assert str(untrained(ledger(discarded=discarded))) == message
