"""What one section says about another, and what follows from several."""

from typing import Any

import pytest
from config.recipes import recipe_with
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

ASYNC = {"type": "async"}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"schedule": ASYNC | {"slots": 7}},
            "schedule.slots = 7 is less than training.prompts_per_step = 8, so no batch could ever fill; set slots between 8 and 16",
        ),
        (
            {"schedule": ASYNC | {"slots": 17}},
            "schedule.slots = 17 is more than (max_staleness + 1) · prompts_per_step = 16, so some token would become too old; "
            "lower slots or raise max_staleness",
        ),
        (
            {"schedule": {"type": "periodic"}, "algorithm": {"advantage": {"scale_rewards": "batch"}}},
            "schedule.type = 'periodic' trains on groups before the batch is complete, but algorithm.advantage.scale_rewards = 'batch' "
            "needs the whole batch; choose another one, or set schedule.type to 'sync'",
        ),
        (
            {"schedule": ASYNC | {"stream": True}, "algorithm": {"name": "m2po"}},
            "schedule.type = 'async' trains on groups before the batch is complete, but algorithm.surrogate.type = 'm2po' needs the whole "
            "batch; choose another one, or set schedule.type to 'sync'",
        ),
        (
            {"schedule": {"type": "periodic"}, "algorithm": {"name": "reinforce_pp"}},
            "schedule.type = 'periodic' trains on groups before the batch is complete, but algorithm.advantage.type = 'whitened' needs the "
            "whole batch; choose another one, or set schedule.type to 'sync'",
        ),
        (
            {
                "schedule": {"type": "periodic"},
                "algorithm": {"advantage": {"type": "python", "function": "a.py:f", "needs_batch": True}},
            },
            "schedule.type = 'periodic' trains on groups before the batch is complete, but algorithm.advantage.needs_batch = true needs "
            "the whole batch; choose another one, or set schedule.type to 'sync'",
        ),
        (
            {"schedule": ASYNC | {"stream": True}, "algorithm": {"num_minibatches": 2}},
            "schedule.type = 'async' accumulates one gradient per batch, but num_minibatches = 2 updates the weights in between; "
            "set algorithm.num_minibatches to 1, or schedule.type to 'sync'",
        ),
        (
            {"schedule": {"type": "sync"}, "algorithm": {"num_minibatches": 3}},
            "algorithm.num_minibatches = 3 does not divide training.prompts_per_step = 8, and minibatches must be equal; choose a divisor",
        ),
        (
            {"rewards": {"functions": [{"type": "reasoning_gym"}]}},
            "rewards of type 'reasoning_gym' need the task's own entries, but data.source.type = 'file'; "
            "use data.source.type = 'reasoning_gym' or another reward",
        ),
        (
            {"evaluation": {"every_steps": 5}},
            "evaluation.every_steps = 5 but data.held_out = 0, so there is nothing to evaluate on; "
            "set data.held_out to the number of rows to keep from training, or evaluation.every_steps = 0",
        ),
        (
            {"sampling": {"top_p": 0.9}},
            "top_p=0.9 and top_k=0 cut the distribution that rollouts are drawn from, while the trainer's ratio is over the whole "
            "vocabulary, so every importance ratio would be biased; set top_p = 1 and top_k = 0 "
            "(evaluation.top_p and evaluation.top_k are free)",
        ),
        (
            {"evaluation": {"num_rollouts": 4}},
            "temperature = 0 gives the same completion 4 times; set num_rollouts = 1 or a temperature above 0",
        ),
        (
            {"training": {"max_steps": 5, "warmup_steps": 6}},
            "warmup_steps = 6 is more than max_steps = 5; the learning rate would never be reached",
        ),
        (
            {"rewards": {"functions": [{"type": "exact_number", "weight": 0.0}]}},
            "every reward has weight 0, so nothing could be learned; give at least one another weight",
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        recipe_with(**sections)
    assert [problem["msg"] for problem in caught.value.errors()] == [f"Value error, {message}"]


@pytest.mark.parametrize(
    "sections",
    [
        {"schedule": ASYNC | {"slots": 8}},
        {"schedule": ASYNC | {"slots": 16}},
        {"schedule": {"type": "periodic"}, "algorithm": {"name": "dr_grpo"}},
        {"schedule": {"type": "periodic"}, "algorithm": {"advantage": {"type": "python", "function": "a.py:f"}}},
        {"schedule": {"type": "sync"}, "algorithm": {"advantage": {"scale_rewards": "batch"}, "num_minibatches": 4}},
        {"schedule": ASYNC, "algorithm": {"name": "m2po", "num_minibatches": 2}},
        {"schedule": ASYNC, "algorithm": {"num_minibatches": 2}},
        {"evaluation": {"num_rollouts": 4, "temperature": 0.7, "top_p": 0.9}},
        {"data": {"source": {"type": "reasoning_gym", "task": "t"}}, "rewards": {"functions": [{"type": "reasoning_gym"}]}},
    ],
)
def test_their_neighbours_are_accepted(sections: dict[str, Any]) -> None:
    recipe_with(**sections)


@given(st.integers(1, 20), st.integers(0, 8), st.integers(1, 200))
def test_slots_are_accepted_exactly_between_a_batch_and_the_bound(prompts: int, max_staleness: int, slots: int) -> None:
    sections = {"training": {"prompts_per_step": prompts}, "schedule": ASYNC | {"max_staleness": max_staleness, "slots": slots}}
    if prompts <= slots <= (max_staleness + 1) * prompts:
        assert recipe_with(**sections).slots == slots
    else:
        with pytest.raises(ValidationError):
            recipe_with(**sections)


def test_schedules_derive_their_numbers() -> None:
    synchronous = recipe_with(schedule={"type": "sync"}, training={"prompts_per_step": 6}, algorithm={"num_generations": 4})
    assert (synchronous.slots, synchronous.streams, synchronous.completions_per_step) == (6, False, 24)
    assert recipe_with(schedule={"type": "periodic"}).streams
    asynchronous = recipe_with(schedule=ASYNC | {"max_staleness": 3})
    assert (asynchronous.slots, asynchronous.streams) == (32, False)


def test_a_recipe_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        recipe_with().training.learning_rate = 1.0  # pyright: ignore[reportAttributeAccessIssue]
