"""The reward `reasoning_gym`: the scorer of the task that an entry came from."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import reasoning_gym
from reasoning_gym.utils import extract_answer

from headrace.rewards.functions import Completion, completion_text

Entry = Mapping[str, Any]
"""A problem as reasoning-gym generates it: `question`, `answer`, and `metadata` with the task's name as `source_dataset`."""


@dataclass(frozen=True, kw_only=True)
class ReasoningGymReward:
    """The task's own score of the answer: what stands in the last `<answer>` tags, or else the whole completion."""

    def __call__(self, completions: Sequence[Completion], reasoning_gym_entry: Sequence[Entry], **_: object) -> list[float]:
        """Score each completion."""
        return [score(completion_text(completion), entry) for completion, entry in zip(completions, reasoning_gym_entry, strict=True)]


def score(text: str | None, entry: Entry) -> float:
    """The task's score of one completion; 0.0 where its scorer fails or gives no number.

    Raises:
        ValueError: The entry names no task that this version of reasoning-gym knows.
    """
    answer = None if text is None else extract_answer(text)
    if answer is None:
        answer = text and text.strip()
    score_answer = _scorer(entry["metadata"]["source_dataset"])
    try:
        value = float(score_answer(answer, entry))
    except Exception:  # noqa: BLE001 (scorers index, parse and evaluate what the model wrote, so anything may be raised)
        return 0.0
    return value if math.isfinite(value) else 0.0


@cache
def _scorer(task: str) -> Callable[..., float]:
    return reasoning_gym.get_score_answer_fn(task)
