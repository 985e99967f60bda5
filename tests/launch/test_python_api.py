from pathlib import Path

import pytest
from rich.console import Console
from tiny_runs import make_inputs, trained_prompts

import headrace
from headrace.errors import DataError, RecipeError, RewardError
from headrace.launch.run import RunResult

ROWS = [{"prompt": f"what is {number} ?", "wanted": "7"} for number in range(6)]


def train(folder: Path, **arguments: object) -> RunResult:
    make_inputs(folder)
    config = {
        "run": {"output_dir": str(folder / "run")},
        "data": {"held_out": 2},
        "sampling": {"max_completion_length": 6},
        "algorithm": {"num_generations": 2},
        "training": {"prompts_per_step": 2, "max_steps": 2, "token_budget": 64},
        "telemetry": {"report_to": []},
    }
    given = {"model": folder / "model", "train_dataset": ROWS, "reward_funcs": [len], "config": config, **arguments}
    return headrace.train(**given, console=Console(quiet=True))


def test_closures_lambdas_and_async_functions_are_rewards(tmp_path: Path) -> None:
    bonus = 0.5

    def with_bonus(completions, wanted, **columns):
        return [bonus * completion.count(word) for completion, word in zip(completions, wanted, strict=True)]

    async def nothing(completions, **columns):
        return [None] * len(completions)

    functions = [with_bonus, lambda completions, **_: [1.0] * len(completions), nothing]
    result = train(tmp_path, reward_funcs=functions, reward_weights=[1.0, 0.25, 1.0])
    assert result.summary["steps"] == 2
    assert result.summary["accuracy_before"] >= 0.25
    assert len(trained_prompts(result.folder)) == 4
    assert (result.model_folder / "model.safetensors").is_file()


def test_a_single_function_needs_no_list(tmp_path: Path) -> None:
    result = train(tmp_path, reward_funcs=lambda completions, **_: [float(len(completion)) for completion in completions])
    assert result.summary["finished"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"reward_funcs": []}, RecipeError, "reward_funcs is empty"),
        ({"reward_funcs": ["exact"]}, RewardError, "must be callable"),
        ({"reward_funcs": [len], "reward_weights": [1.0, 2.0]}, RewardError, "2 reward weights for 1 reward functions"),
        ({"train_dataset": []}, DataError, "no rows"),
        ({"train_dataset": [{"question": "what"}] * 3}, DataError, "no column 'prompt'"),
        ({"config": {"run": {"output_dir": "x", "sed": 1}}}, RecipeError, "did you mean 'run.seed'"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, arguments: dict[str, object], error: type[Exception], message: str) -> None:
    arguments = {"reward_funcs": lambda completions, **_: [0.0] * len(completions), **arguments}
    with pytest.raises(error, match=message):
        train(tmp_path, **arguments)


def test_there_is_nothing_else_at_the_top() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = headrace.trian
