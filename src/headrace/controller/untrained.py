"""Why a run ended without a single training step."""

from headrace.errors import RewardError
from headrace.types import Ledger

_REASONS = {
    "no_signal": (
        "had rewards that tell none of their rollouts apart, which algorithm.dynamic_sampling leaves out",
        "take easier or harder prompts, more rollouts a prompt (algorithm.num_generations), or a reward with more values",
    ),
    "reward_failed": (
        "had too few scored rollouts, because reward functions failed",
        "mend the reward functions, whose errors are in the run's events.jsonl",
    ),
    "no_reward": (
        "had too few scored rollouts, because no reward function applied (all returned None)",
        "add a reward function that applies to these prompts",
    ),
}
"""What is said of groups that were discarded for a reason, and what to do about it."""


def untrained(ledger: Ledger) -> RewardError:
    """The error of a run whose prompts have ended, and whose groups were all discarded."""
    discarded = {reason: number for reason, number in ledger.discarded.items() if number}
    found = ", ".join(f"{number} {_REASONS[reason][0]}" for reason, number in discarded.items())
    remedy = ", and ".join(_REASONS[reason][1] for reason in discarded)
    return RewardError(
        f"the prompts ended without a training step, because all {sum(discarded.values())} groups were discarded: {found}; {remedy}"
    )
