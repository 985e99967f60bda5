"""`[shadow]`: algorithms that are compared with the one that is trained, on its own batches, without being applied."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, field_validator

from headrace.config.algorithm import AlgorithmSection
from headrace.config.algorithm_checks import ALGORITHM_CHECKS
from headrace.config.base import Section
from headrace.config.named_algorithms import AlgorithmName

APPLIED = "applied"
"""What the trained algorithm is called among those that it is compared with."""
_OF_THE_BATCH = ("num_generations", "num_minibatches", "dynamic_sampling", "max_groups_without_signal")
"""Keys of `[algorithm]` that make the batch, which is there already."""


class ShadowSection(Section):
    """Algorithms that are compared on the batches that one of them is trained with (docs/shadow.md).

    Metrics say what each would keep of the tokens, and how far its gradient points where the applied one does. Training is the same with
    and without it.
    """

    algorithms: list[AlgorithmName | dict[str, Any]] = Field(min_length=1)
    """Names of algorithms; or tables with the keys of `[algorithm]` that say what an algorithm is, and a `label` where a name comes twice.
    What makes the batch, such as `num_generations`, is as in `[algorithm]`."""
    num_layers: int = Field(default=1, ge=1)
    """Gradients of so many of the last layers are compared."""
    every_steps: int = Field(default=1, ge=1)
    """Steps between two comparisons."""

    @field_validator("algorithms")
    @classmethod
    def _labels_name_one_each(cls, algorithms: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
        labels = [_label(entry) for entry in algorithms]
        for label in labels:
            if not isinstance(label, str) or not re.fullmatch(r"[\w.-]+", label) or label == APPLIED:
                raise ValueError(f"{label!r} cannot be a label: use letters, digits, '_', '.' and '-', and not {APPLIED!r}")
            if labels.count(label) > 1:
                raise ValueError(f"{label!r} comes more than once; give one of them another label, as in {{name = ..., label = 'other'}}")
        return algorithms


def shadow_algorithms(shadow: ShadowSection | None, algorithm: AlgorithmSection) -> dict[str, AlgorithmSection]:
    """The algorithms that are compared with, by their labels, with what makes the batch taken over.

    Raises:
        ValidationError: A table does not describe an algorithm.
    """
    return {} if shadow is None else {_label(entry): _section(entry, algorithm) for entry in shadow.algorithms}


def shadow_problems(shadow: ShadowSection | None, algorithm: AlgorithmSection, *, streams: bool) -> list[str]:
    """Why algorithms cannot be compared with the applied one.

    Args:
        shadow: Names them.
        algorithm: The applied one.
        streams: Whether training starts before the batch is complete.
    """
    found: list[str] = []
    for entry in [] if shadow is None else shadow.algorithms:
        try:
            problems = [*_keys_of_the_batch(entry), *_problems(_section(entry, algorithm), algorithm, streams=streams)]
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        found += [f"shadow.algorithms, {_label(entry)!r}: {problem}" for problem in problems]
    return found


def _label(entry: str | Mapping[str, Any]) -> str:
    return entry if isinstance(entry, str) else entry.get("label", entry.get("name", "grpo"))


def _section(entry: str | Mapping[str, Any], applied: AlgorithmSection) -> AlgorithmSection:
    table = {"name": entry} if isinstance(entry, str) else {key: value for key, value in entry.items() if key != "label"}
    batch = {"num_generations": applied.num_generations, "num_minibatches": applied.num_minibatches}
    # Which groups the batch has is decided already.
    return AlgorithmSection.model_validate({**table, **batch, "dynamic_sampling": False})


def _keys_of_the_batch(entry: str | Mapping[str, Any]) -> list[str]:
    given = [] if isinstance(entry, str) else [key for key in _OF_THE_BATCH if key in entry]
    return [f"{key} says what the batch is made of, which is the same for all; set it in [algorithm] alone" for key in given]


def _problems(shadow: AlgorithmSection, applied: AlgorithmSection, *, streams: bool) -> list[str]:
    found = [check(shadow) for check in ALGORITHM_CHECKS]
    if shadow.critic is not None:
        found.append("its advantages come from a critic, which only learns when the algorithm is applied; set it as algorithm.name")
    if shadow.distillation_coefficient > 0 and applied.distillation_coefficient == 0:
        found.append(
            "it needs a teacher's log-probabilities, which are there only where algorithm.distillation_coefficient is above 0, too"
        )
    if shadow.penalises_rewards and not applied.penalises_rewards:
        found.append("it needs the initial policy's log-probabilities, which are there only where algorithm.kl_in is 'reward', too")
    if shadow.has_kl_loss or shadow.entropy_coefficient:
        found.append("policy losses are compared without their KL and entropy terms; leave beta and entropy_coefficient out")
    if streams and shadow.needs_batch is not None:
        found.append(f"{shadow.needs_batch} needs the whole batch, but training starts before it is complete; set schedule.type to 'sync'")
    return [problem for problem in found if problem is not None]
