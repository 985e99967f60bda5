"""The whole recipe, and the checks that need more than one section."""

from collections.abc import Callable

from pydantic import Field, model_validator

from headrace.config.algorithm import AlgorithmSection
from headrace.config.algorithm_checks import ALGORITHM_CHECKS
from headrace.config.base import Section
from headrace.config.data import DataSection, ModelSection
from headrace.config.generation import EngineSection, EvaluationSection, SamplingSection
from headrace.config.lora import LoraSection
from headrace.config.rewards import RewardsSection
from headrace.config.run import RunSection, TelemetrySection
from headrace.config.schedule import AsyncSchedule, PeriodicSchedule, ScheduleSection
from headrace.config.shadow import ShadowSection, shadow_algorithms, shadow_problems
from headrace.config.teacher import TeacherSection
from headrace.config.teacher_checks import teacher_problem
from headrace.config.training import CheckpointSection, TrainingSection


class Recipe(Section):
    """Everything that a run is made from: one TOML file, one table a section."""

    run: RunSection
    model: ModelSection
    data: DataSection
    rewards: RewardsSection = RewardsSection()
    sampling: SamplingSection = SamplingSection()
    evaluation: EvaluationSection = EvaluationSection()
    schedule: ScheduleSection = Field(default=AsyncSchedule())
    algorithm: AlgorithmSection = AlgorithmSection()
    teacher: TeacherSection | None = None
    training: TrainingSection = TrainingSection()
    lora: LoraSection | None = None
    shadow: ShadowSection | None = None
    engine: EngineSection = EngineSection()
    checkpoint: CheckpointSection = CheckpointSection()
    telemetry: TelemetrySection = TelemetrySection()

    @model_validator(mode="after")
    def _sections_agree(self) -> "Recipe":
        problems = [check(self.algorithm) for check in ALGORITHM_CHECKS] + [check(self) for check in CROSS_CHECKS]
        problems = [problem for problem in problems if problem] + shadow_problems(self.shadow, self.algorithm, streams=self.streams)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def max_live_groups(self) -> int:
        """Most groups that the staleness bound allows to be alive: (max_staleness + 1) · prompts_per_step."""
        return (self.schedule.max_staleness + 1) * self.training.prompts_per_step

    @property
    def slots(self) -> int:
        """Groups alive at once."""
        chosen = self.schedule.slots if isinstance(self.schedule, AsyncSchedule) else None
        return self.max_live_groups if chosen is None else chosen

    @property
    def streams(self) -> bool:
        """Whether training starts before the batch is complete."""
        return isinstance(self.schedule, PeriodicSchedule) or (isinstance(self.schedule, AsyncSchedule) and self.schedule.stream)

    @property
    def shadow_algorithms(self) -> dict[str, AlgorithmSection]:
        """Algorithms that are only compared with, by their labels."""
        return shadow_algorithms(self.shadow, self.algorithm)

    @property
    def completions_per_step(self) -> int:
        """Rollouts that a training step consumes."""
        return self.training.prompts_per_step * self.algorithm.num_generations


def _slots_hold_a_batch(recipe: Recipe) -> str | None:
    if recipe.slots < recipe.training.prompts_per_step:
        return (
            f"schedule.slots = {recipe.slots} is less than training.prompts_per_step = {recipe.training.prompts_per_step}, "
            f"so no batch could ever fill; set slots between {recipe.training.prompts_per_step} and {recipe.max_live_groups}"
        )
    return None


def _slots_keep_the_bound(recipe: Recipe) -> str | None:
    if recipe.slots > recipe.max_live_groups:
        return (
            f"schedule.slots = {recipe.slots} is more than (max_staleness + 1) · prompts_per_step = {recipe.max_live_groups}, "
            "so some token would become too old; lower slots or raise max_staleness"
        )
    return None


def _streaming_sees_single_groups(recipe: Recipe) -> str | None:
    if recipe.streams and recipe.algorithm.needs_batch is not None:
        return (
            f"schedule.type = {recipe.schedule.type!r} trains on groups before the batch is complete, but algorithm."
            f"{recipe.algorithm.needs_batch} needs the whole batch; choose another one, or set schedule.type to 'sync'"
        )
    return None


def _streaming_makes_one_update(recipe: Recipe) -> str | None:
    if recipe.streams and recipe.algorithm.num_minibatches > 1:
        return (
            f"schedule.type = {recipe.schedule.type!r} accumulates one gradient per batch, but "
            f"num_minibatches = {recipe.algorithm.num_minibatches} updates the weights in between; set algorithm.num_minibatches to 1, "
            "or schedule.type to 'sync'"
        )
    return None


def _minibatches_divide(recipe: Recipe) -> str | None:
    prompts, minibatches = recipe.training.prompts_per_step, recipe.algorithm.num_minibatches
    if prompts % minibatches:
        return (
            f"algorithm.num_minibatches = {minibatches} does not divide training.prompts_per_step = {prompts}, and minibatches "
            "must be equal; choose a divisor"
        )
    return None


def _teacher_and_distillation(recipe: Recipe) -> str | None:
    return teacher_problem(recipe.teacher, recipe.algorithm, recipe.sampling)


def _scorer_knows_the_task(recipe: Recipe) -> str | None:
    if any(function.type == "reasoning_gym" for function in recipe.rewards.functions) and recipe.data.source.type != "reasoning_gym":
        return (
            f"rewards of type 'reasoning_gym' need the task's own entries, but data.source.type = {recipe.data.source.type!r}; "
            "use data.source.type = 'reasoning_gym' or another reward"
        )
    return None


def _evaluation_has_prompts(recipe: Recipe) -> str | None:
    if recipe.evaluation.every_steps > 0 and recipe.data.held_out == 0:
        return (
            f"evaluation.every_steps = {recipe.evaluation.every_steps} but data.held_out = 0, so there is nothing to evaluate on; "
            "set data.held_out to the number of rows to keep from training, or evaluation.every_steps = 0"
        )
    return None


CROSS_CHECKS: tuple[Callable[[Recipe], str | None], ...] = (
    _slots_hold_a_batch,
    _slots_keep_the_bound,
    _streaming_sees_single_groups,
    _streaming_makes_one_update,
    _minibatches_divide,
    _teacher_and_distillation,
    _scorer_knows_the_task,
    _evaluation_has_prompts,
)
