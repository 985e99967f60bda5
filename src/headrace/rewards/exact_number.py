"""The reward `exact_number`: whether the last number of a completion is the right one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace.rewards.functions import Completion, completion_text, required_column

_NUMBER = re.compile(
    r"""(?P<sign>(?<![\w)])-\$?)?              # a minus after a word or a bracket subtracts
        (?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)
        (?P<exponent>[eE][-+]?\d{1,3}(?!\w))?""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class ExactNumberReward:
    """1.0 when the last number of the completion equals the last number of the answer, else 0.0.

    Numbers are compared as decimals: `1,000` is 1000 and `3.0` is 3; currency signs, units and a full stop do not matter.
    The last number of the answer counts too, so that GSM8K's `… #### 72` is 72.
    """

    answer_column: str = "answer"

    def __call__(self, completions: Sequence[Completion], **columns: Sequence[Any]) -> list[float]:
        """Score each completion.

        Raises:
            ValueError: There is no answer column, or no number in an answer.
        """
        answers = required_column(columns, self.answer_column)
        rewards = []
        for completion, answer in zip(completions, answers, strict=True):
            right = last_number(str(answer))
            if right is None:
                raise ValueError(f"there is no number in the answer {answer!r} of column {self.answer_column!r}")
            rewards.append(float(last_number(completion_text(completion)) == right))
        return rewards


def last_number(text: str) -> Decimal | None:
    """The last decimal number in a text, or None: `last_number("so 1,200.50 dollars.")` is 1200.5."""
    numbers = list(_NUMBER.finditer(text.replace("\N{MINUS SIGN}", "-")))
    if not numbers:
        return None
    last = numbers[-1]
    sign = "-" if last["sign"] else ""
    return Decimal(sign + last["digits"].replace(",", "") + (last["exponent"] or ""))
