"""Prompts and rollouts for the tests of the rewards."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import numpy as np

from headrace.rewards.building import wrap_reward_functions
from headrace.rewards.service import ProcessRewardService
from headrace.types import Message, Prompt, Rollout, RolloutReward


def prompt(text: str | tuple[Message, ...] = "1 + 2?", **columns: object) -> Prompt:
    return Prompt(row=7, epoch=0, token_ids=(1, 2), text=text, columns=columns)


def rollout(text: str, completion_ids: Sequence[int] = (5, 6)) -> Rollout:
    return Rollout(
        completion_ids=np.array(completion_ids, np.int32),
        logprobs=np.zeros(len(completion_ids), np.float32),
        versions=np.zeros(len(completion_ids), np.int32),
        finish_reason="stop",
        text=text,
    )


def rollouts(*texts: str) -> list[Rollout]:
    return [rollout(text) for text in texts]


def with_service(
    use: Callable[[ProcessRewardService], Awaitable[Any]],
    *calls: Callable[..., Any],
    weights: Sequence[float] | None = None,
    num_workers: int = 1,
    time_limit_seconds: float = 10.0,
    on_failure: Literal["exclude", "zero"] = "exclude",
) -> Any:
    """What `use` returns of a service with these functions; the service is closed afterwards."""

    async def run() -> Any:
        service = ProcessRewardService(
            wrap_reward_functions(calls, weights), num_workers=num_workers, time_limit_seconds=time_limit_seconds, on_failure=on_failure
        )
        try:
            return await use(service)
        finally:
            await service.close()

    return asyncio.run(run())


def score_once(*calls: Callable[..., Any], texts: Sequence[str], **options: Any) -> Sequence[RolloutReward]:
    """The rewards of one group."""
    return with_service(lambda service: service.score(prompt(), rollouts(*texts)), *calls, **options)
