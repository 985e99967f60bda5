"""The reward `math_verify`: mathematical equality of the completion's answer and the gold one, by the library math-verify.

The library's own time limits are off: they need SIGALRM, which only the main thread may use, and elsewhere they make
every answer wrong. Two limits stand in for them. Numbers with more than `MAX_DIGITS` digits are not evaluated, in
whatever thread (`9^{9^{9^9}}` would take the machine's memory in one uninterruptible multiplication). In a main thread, as
in the reward workers, a comparison ends after `MAX_CPU_SECONDS`; elsewhere the caller has to limit the time.
"""

import logging
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import sympy
from math_verify import parse, verify
from sympy.functions.combinatorial.factorials import CombinatorialFunction

from headrace.rewards.functions import Completion, completion_text, required_column

MAX_DIGITS = 10_000
MAX_CPU_SECONDS = 1.0

# It warns once that its time limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@dataclass(frozen=True, kw_only=True)
class MathVerifyReward:
    """1.0 when math-verify finds the completion's answer equal to the gold one, else 0.0, also where it cannot tell."""

    answer_column: str = "answer"

    def __call__(self, completions: Sequence[Completion], **columns: Sequence[Any]) -> list[float]:
        """Score each completion.

        Raises:
            ValueError: There is no answer column, or math-verify understands a gold answer not at all.
        """
        golds = required_column(columns, self.answer_column)
        return [score(completion_text(completion), str(gold)) for completion, gold in zip(completions, golds, strict=True)]


def score(text: str, gold: str) -> float:
    """1.0 or 0.0 for one completion. The comparison is not symmetric: the gold answer goes first.

    Raises:
        ValueError: math-verify understands the gold answer not at all.
    """
    expected = _parse_gold(gold)
    try:
        with _cpu_limit(MAX_CPU_SECONDS):
            answers = [answer for answer in parse(text, parsing_timeout=0) if not _is_oversized(answer)]
            return float(verify(expected, answers, timeout_seconds=0))
    except (_CpuLimitExceeded, RecursionError):
        return 0.0


@lru_cache(maxsize=1024)
def _parse_gold(gold: str) -> list[Any]:
    _, _, answer = gold.rpartition("####")
    is_marked = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
    parsed = parse(answer if is_marked else f"\\boxed{{{answer.strip()}}}", parsing_timeout=0)
    if not parsed:
        raise ValueError(f"math-verify finds no answer in the gold answer {gold!r}")
    return parsed


def _is_oversized(expression: object) -> bool:
    return isinstance(expression, sympy.Basic) and not math.isfinite(_digits(expression))


def _digits(expression: sympy.Basic) -> float:
    """A bound on the decimal digits of every number in an expression; infinite when it exceeds `MAX_DIGITS`."""
    digits = sum(_digits(argument) for argument in expression.args)
    if isinstance(expression, sympy.Rational):
        digits = math.log10(1 + max(abs(expression.p), expression.q))
    elif isinstance(expression, sympy.Float):
        digits = math.log10(1 + abs(float(expression)))
    elif isinstance(expression, sympy.Pow) and math.isfinite(digits):
        digits = _digits(expression.base) * 10 ** min(_digits(expression.exp), 300)
    elif isinstance(expression, CombinatorialFunction) and math.isfinite(digits):
        digits = digits * 10 ** min(digits, 300)
    return digits if digits <= MAX_DIGITS else math.inf


class _CpuLimitExceeded(BaseException):
    """Not an Exception, so that no handler inside the libraries takes it for a failed simplification."""


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `_CpuLimitExceeded` after so much of the process's CPU time, so that a busy machine makes no answer wrong."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGVTALRM, _raise_cpu_limit)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _raise_cpu_limit(_signal: int, _frame: FrameType | None) -> None:
    raise _CpuLimitExceeded
