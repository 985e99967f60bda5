"""What a recipe amounts to, worked out by hand."""

from typing import Any

import pytest
from config.recipes import recipe_with

from headrace.config.model_facts import ModelFacts
from headrace.config.plan import make_plan
from headrace.errors import DataError

MODEL = ModelFacts(num_parameters=1000, num_layers=3, hidden_size=8, intermediate_size=16, num_kv_heads=2, head_dim=4, max_positions=1000)
ROOMY = {"engine": {"max_concurrent_sequences": 1000}}
"""Settings without a warning."""


def held_out(rows: int) -> dict[str, Any]:
    return {"source": {"type": "file", "path": "a"}, "held_out": rows}


def test_batch_arithmetic() -> None:
    plan = make_plan(
        recipe_with(training={"prompts_per_step": 12}, algorithm={"num_generations": 4, "num_minibatches": 3}, schedule={"type": "sync"})
    )
    assert (plan.completions_per_step, plan.updates_per_step, plan.completions_per_update, plan.slots) == (48, 3, 16, 12)


@pytest.mark.parametrize(
    ("schedule", "worst", "reason"),
    [
        ({"type": "sync"}, 0, "a batch is generated, then trained on"),
        ({"type": "periodic"}, 0, "training streams over the batch that is being generated, with one update at its end"),
        ({"type": "async"}, 1, "no group is trained on later than 1 step after its admission"),
        ({"type": "async", "max_staleness": 3}, 3, "no group is trained on later than 3 steps after its admission"),
        (
            {"type": "async", "max_staleness": 2, "order": "completion"},
            None,
            "groups are trained in order of completion, so that 2 bounds their number, not their age",
        ),
    ],
)
def test_worst_staleness_and_why(schedule: dict[str, Any], worst: int | None, reason: str) -> None:
    plan = make_plan(recipe_with(schedule=schedule))
    assert (plan.worst_staleness, plan.staleness_reason) == (worst, reason)


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        ({}, "grpo: Σ -min(r·A, clip(r, 0.8, 1.2)·A); r = π/π_behaviour, A = (R - group mean) / group std"),
        (
            {"name": "areal", "surrogate": {"epsilon_high": 0.28}, "advantage": {"scale_rewards": "none"}},
            "areal: Σ -w·min(r·A, clip(r, 0.8, 1.28)·A); r = π/π_prox, w = π_prox/π_behaviour of each token, left out outside [0, 5], "
            "π_prox by recompute, A = R - group mean",
        ),
        (
            {
                "name": "a3po",
                "beta": 0.04,
                "entropy_coefficient": 0.01,
                "correction": {"type": "tis", "high": 2.0},
            },
            "a3po: Σ -w·min(r·A, clip(r, 0.8, 1.2)·A) + 0.04·KL(π ‖ π_0) by k3 - 0.01·H(π); r = π/π_prox, w = π_prox/π_behaviour of each "
            "token, cut to [0, 2], π_prox by loglinear, A = (R - group mean) / group std",
        ),
    ],
)
def test_the_loss_as_a_formula(algorithm: dict[str, Any], loss: str) -> None:
    assert make_plan(recipe_with(algorithm=algorithm)).loss == loss


@pytest.mark.parametrize(
    ("denominator", "text"),
    [
        ("tokens", "completion tokens of the update"),
        ("sequences", "each completion's own tokens, then 32 completions"),
        ("constant", "32 completions · 256 tokens = 8192"),
    ],
)
def test_the_denominator_counts_one_update(denominator: str, text: str) -> None:
    assert make_plan(recipe_with(algorithm={"denominator": denominator, "num_minibatches": 2})).denominator == text


@pytest.mark.parametrize(
    ("evaluation", "text"),
    [
        ({}, "5 held-out prompts, one completion each, greedy, at most 256 tokens; before and after"),
        (
            {"temperature": 0.6, "top_p": 0.9, "num_rollouts": 4, "max_completion_length": 100, "every_steps": 3},
            "5 held-out prompts, 4 completions each, temperature 0.6, top_p 0.9, top_k 0, at most 100 tokens; "
            "every 3 steps, before and after",
        ),
    ],
)
def test_evaluation_in_words(evaluation: dict[str, Any], text: str) -> None:
    plan = make_plan(recipe_with(data=held_out(5), evaluation=evaluation))
    assert plan.evaluation == text
    assert plan.sampling == "temperature 1, whole vocabulary, at most 256 tokens"


def test_without_held_out_rows_there_is_no_evaluation() -> None:
    assert make_plan(recipe_with()).evaluation == "none, because data.held_out = 0"


@pytest.mark.parametrize(
    ("num_rows", "epochs", "steps", "last"),
    [
        (31, 3, 8, 7),  # 63 prompts
        (31, 8, 21, 8),  # 168
        (17, 1, 1, 7),
        (11, 1, 1, 1),
    ],
)
def test_steps_follow_from_epochs_and_the_last_one_takes_what_is_left(num_rows: int, epochs: int, steps: int, last: int) -> None:
    plan = make_plan(recipe_with(data=held_out(10), training={"num_train_epochs": epochs}), num_rows=num_rows)
    assert (plan.num_prompts, plan.steps, plan.prompts_of_last_step, plan.epochs) == (num_rows - 10, steps, last, epochs)


def test_max_steps_decide_when_given() -> None:
    plan = make_plan(recipe_with(training={"max_steps": 5}), num_rows=16)
    assert (plan.steps, plan.prompts_of_last_step, plan.epochs) == (5, 8, 2.5)


def test_data_that_was_not_counted_leaves_steps_open() -> None:
    plan = make_plan(recipe_with())
    assert (plan.num_prompts, plan.steps, plan.prompts_of_last_step, plan.epochs) == (None, None, None, None)
    assert make_plan(recipe_with(training={"max_steps": 5})).steps == 5


def test_no_row_left_to_train_on_is_an_error() -> None:
    with pytest.raises(DataError) as caught:
        make_plan(recipe_with(data=held_out(8)), num_rows=8)
    assert str(caught.value) == "the data has 8 rows and data.held_out = 8 leaves none to train on; lower data.held_out"


def test_memory_is_estimated_when_the_model_is_known() -> None:
    assert make_plan(recipe_with()).memory is None
    memory = make_plan(recipe_with(), model=MODEL).memory
    assert memory is not None
    assert memory.total_bytes > 0


WARNINGS = [
    (
        {"training": {"token_budget": 1279}},
        "training.token_budget = 1279 is less than data.max_prompt_length + sampling.max_completion_length = 1280: "
        "a sample that long ends the run; raise the budget or lower a limit",
    ),
    (
        {"engine": {"max_concurrent_sequences": 63}},
        "the engine decodes 63 sequences together, fewer than the 64 completions of a step, so that each batch takes several turns; "
        "raise engine.max_concurrent_sequences",
    ),
    (
        {"training": {"learning_rate": 2e-4}},
        "training.learning_rate = 0.0002 is large for training all weights; above 0.0001 runs usually collapse",
    ),
    (
        {"schedule": {"type": "async", "max_staleness": 4}},
        "max_staleness = 4 without a correction costs accuracy; set algorithm.name to 'a3po' or 'areal'",
    ),
    (
        {"algorithm": {"name": "dapo"}, "training": {"lr_scheduler": "linear"}},
        "training.lr_scheduler = 'linear' falls over the steps of training.num_train_epochs, but algorithm.dynamic_sampling discards "
        "groups, so that the prompts end sooner, with the learning rate still high; set training.max_steps",
    ),
]


@pytest.mark.parametrize(("sections", "warning"), WARNINGS)
def test_what_is_likely_to_go_wrong_is_told(sections: dict[str, Any], warning: str) -> None:
    assert make_plan(recipe_with(**ROOMY | sections)).warnings == (warning,)


def test_sequences_beyond_the_models_positions_are_told() -> None:
    assert make_plan(recipe_with(**ROOMY), model=MODEL).warnings == (
        "prompt and completion may have 1280 tokens together, but the model is made for 1000; "
        "lower data.max_prompt_length or sampling.max_completion_length",
    )


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"token_budget": 1280, "learning_rate": 1e-4}},
        {"engine": {"max_concurrent_sequences": 64}},
        {"schedule": {"type": "async", "max_staleness": 4}, "algorithm": {"name": "a3po"}},
        {"schedule": {"type": "async", "max_staleness": 3}},
        {"algorithm": {"name": "dapo"}, "training": {"lr_scheduler": "cosine", "max_steps": 100}},
        {"algorithm": {"name": "dapo"}},
        {"training": {"lr_scheduler": "linear"}},
    ],
)
def test_their_neighbours_are_not_warned_of(sections: dict[str, Any]) -> None:
    assert make_plan(recipe_with(**ROOMY | sections)).warnings == ()
