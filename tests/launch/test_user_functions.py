from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_recipe

from headrace.errors import UserError
from headrace.launch.credit import make_credit, user_surrogate
from headrace.launch.user_functions import try_out

FUNCTIONS = """
import torch

def centred(rewards, lengths):
    present = [[reward for reward in group if reward is not None] for group in rewards]
    means = [sum(group) / len(group) for group in present]
    return [[None if reward is None else reward - mean for reward in group] for group, mean in zip(rewards, means)]

def forgets_none(rewards, lengths):
    return [[reward - 0.5 for reward in group] for group in rewards]

def one_argument(rewards):
    return rewards

def importance(ratio, logprobs, advantages):
    return -ratio * advantages

def summed(ratio, logprobs, advantages):
    return (-ratio * advantages).sum()

def detached(ratio, logprobs, advantages):
    return -ratio.detach() * advantages

def wrong_names(ratio, logprobs):
    return ratio
"""


def tried(folder: Path, part: str, name: str) -> None:
    (folder / "mine.py").write_text(FUNCTIONS)
    settings: dict[str, Any] = {part: {"type": "python", "function": f"mine.py:{name}"}}
    algorithm = tiny_recipe(folder, algorithm=settings).algorithm
    credit = make_credit(algorithm, max_completion_length=8, base_folder=folder)
    try_out(algorithm, credit, user_surrogate(algorithm, base_folder=folder))


@pytest.mark.parametrize(("part", "name"), [("advantage", "centred"), ("surrogate", "importance")])
def test_what_works_passes(tmp_path: Path, part: str, name: str) -> None:
    tried(tmp_path, part, name)


@pytest.mark.parametrize(
    ("part", "name", "words"),
    [
        ("advantage", "forgets_none", "advantage.function = 'mine.py:forgets_none' failed for rewards .*TypeError: unsupported operand"),
        ("advantage", "one_argument", "failed for rewards .*TypeError: one_argument"),
        ("surrogate", "summed", r"surrogate.function returned a tensor of shape \[\] for 3 tokens"),
        ("surrogate", "detached", "returned losses without a gradient"),
        ("surrogate", "wrong_names", "surrogate.function failed for 3 tokens: TypeError: wrong_names"),
    ],
)
def test_what_cannot_work_is_told_before_a_model_is_loaded(tmp_path: Path, part: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tried(tmp_path, part, name)
