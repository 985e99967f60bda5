"""Scored groups made to measure."""

import numpy as np

from headrace.telemetry.events import TrainedGroup
from headrace.types import AdmittedGroup, Prompt, Rollout, RolloutReward, Sample, ScoredGroup, SharedPromptRow


def rollout(length, finish_reason="stop", version=0):
    return Rollout(
        completion_ids=np.arange(length, dtype=np.int32),
        logprobs=np.full(length, -0.5, dtype=np.float32),
        versions=np.full(length, version, dtype=np.int32),
        finish_reason=finish_reason,
        text="x" * length,
    )


def scored_group(group_id, rollouts, totals, prompt_length=3):
    prompt = Prompt(row=group_id, epoch=0, token_ids=tuple(range(prompt_length)), text="?")
    return ScoredGroup(
        group=AdmittedGroup(group_id=group_id, prompt=prompt, version=0, deadline=1),
        rollouts=tuple(rollouts),
        rewards=tuple(RolloutReward(total=total, by_function={}) for total in totals),
    )


def trained_group(group_id, lengths, advantages=None, prompt_length=3):
    scored = scored_group(group_id, [rollout(length) for length in lengths], [0.0] * len(lengths), prompt_length)
    advantages = [1.0] * len(lengths) if advantages is None else advantages
    of_tokens = [None if each is None else np.full(length, each, np.float32) for each, length in zip(advantages, lengths, strict=True)]
    return TrainedGroup(scored=scored, advantages=of_tokens)


def row(group_id, prompt_length, lengths):
    samples = tuple(
        Sample(
            completion_ids=np.arange(length, dtype=np.int32),
            logprobs=np.zeros(length, dtype=np.float32),
            versions=np.zeros(length, dtype=np.int32),
            advantages=np.full(length, index, dtype=np.float32),
        )
        for index, length in enumerate(lengths)
    )
    return SharedPromptRow(group_id=group_id, prompt_ids=tuple(range(prompt_length)), samples=samples)
