"""One call of a reward function on the completions of a group: what a worker does."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat

from headrace.rewards.functions import GroupArguments

FailureReason = Literal["raised", "timed_out", "died", "not_a_number"]
"""Why a value is missing: the function raised; it ran too long; its process ended; it returned no finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A value that could not be had. `text` says what the function did, to be put after its name."""

    reason: FailureReason
    text: str


Outcome = float | None | Failure
"""What a function says of one completion; None where it does not apply."""


class ContractBrokenError(Exception):
    """A function did not return one value for each completion. The message says what it returned, to be put after its name."""


class GroupScorer:
    """Calls reward functions.

    Args:
        runner: Runs the async ones: all on one event loop, so that they may keep clients open.
        attempt_starts: Called before each call of a function: the time limit counts from there.
    """

    def __init__(self, runner: asyncio.Runner, *, attempt_starts: Callable[[], None]) -> None:
        self._runner = runner
        self._attempt_starts = attempt_starts

    def score(self, call: Callable[..., Any], arguments: GroupArguments) -> list[Outcome]:
        """One outcome for each completion.

        A function that raises is called again with one completion at a time, so that a bad completion costs its siblings nothing.

        Raises:
            ContractBrokenError: The function returned another number of values.
        """
        try:
            return [_outcome(value) for value in self._values(call, arguments)]
        except ContractBrokenError:
            raise
        except BaseException as error:  # noqa: BLE001 (user code may raise anything, SystemExit too; it goes to the caller as a Failure)
            if len(arguments.texts) == 1:
                return [Failure(reason="raised", text=_describe(error))]
        return [self.score(call, arguments.of_rollout(index))[0] for index in range(len(arguments.texts))]

    def _values(self, call: Callable[..., Any], arguments: GroupArguments) -> list[object]:
        self._attempt_starts()
        result = call(**arguments.keywords_for(call))
        if inspect.isawaitable(result):
            result = self._runner.run(_wait_for(result))
        expected = len(arguments.texts)
        if not isinstance(result, Iterable):
            raise ContractBrokenError(f"returned {result!r:.100} for {expected} completions")
        values = list(result)
        if len(values) != expected:
            raise ContractBrokenError(f"returned {len(values)} values for {expected} completions")
        return values


async def _wait_for(result: Any) -> Any:
    return await result


def _outcome(value: object) -> Outcome:
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return (
        number if math.isfinite(number) else Failure(reason="not_a_number", text=f"returned {value!r:.100}, which is not a finite number")
    )


def _describe(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {type(error).__name__}: {error!s:.500} ({frame.filename}:{frame.lineno})"
