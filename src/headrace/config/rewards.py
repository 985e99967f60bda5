"""`[rewards]`: what a completion is worth, and how the functions are run."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.config.base import FunctionName, Section


class ExactNumber(Section):
    """1 when the completion's last number equals the answer, else 0."""

    type: Literal["exact_number"] = "exact_number"
    answer_column: str = Field(default="answer", min_length=1)
    """Column with the right answer."""
    weight: float = 1.0
    """Factor in the sum of the rewards."""


class MathVerify(Section):
    """1 when math-verify finds the answer equal to the gold one, else 0 (needs `pip install headrace[math]`)."""

    type: Literal["math_verify"] = "math_verify"
    answer_column: str = Field(default="answer", min_length=1)
    """Column with the right answer."""
    weight: float = 1.0
    """Factor in the sum of the rewards."""


class ReasoningGym(Section):
    """The task's own scorer; only for data of type `reasoning_gym`."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    weight: float = 1.0
    """Factor in the sum of the rewards."""


class PythonReward(Section):
    """A function with TRL's signature, `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, plain or async."""

    type: Literal["python"] = "python"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`."""
    weight: float = 1.0
    """Factor in the sum of the rewards."""


RewardFunctionSpec = Annotated[ExactNumber | MathVerify | ReasoningGym | PythonReward, Field(discriminator="type")]


class RewardsSection(Section):
    """The reward functions and the processes that run them."""

    functions: list[RewardFunctionSpec] = []
    """The rewards to add up. It may be empty only where Python code passes functions directly, or where nothing is learned from rewards:
    with `algorithm.advantage.type = "none"`, as `distill` has it."""
    time_limit_seconds: float = Field(default=10.0, gt=0)
    """Limit of one call, counted while it runs, not while it waits; a call that exceeds it is killed."""
    num_workers: int = Field(default=1, ge=1)
    """Processes beside generation."""
    on_failure: Literal["exclude", "zero"] = "exclude"
    """A rollout whose reward failed takes no part in training nor in its group's statistics (`exclude`), or counts as 0 (`zero`)."""
    max_failed_groups: int = Field(default=16, ge=1)
    """The run ends with the reward's own error when this many groups in a row have fewer scored rollouts than are needed: 2 where siblings
    are compared, else 1."""

    @model_validator(mode="after")
    def _some_weight(self) -> "RewardsSection":
        if self.functions and all(function.weight == 0 for function in self.functions):
            raise ValueError("every reward has weight 0, so nothing could be learned; give at least one another weight")
        return self
