"""`summary.json`: what a run achieved, and at what price, in one small file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.telemetry.distances import REVERSE_KL, distance_metrics
from headrace.telemetry.events import EvaluationFinished, Event, RunFinished, StepFinished
from headrace.telemetry.memory import peak_resident_bytes
from headrace.telemetry.metrics import engine_since, finite, rollouts_of, token_staleness
from headrace.telemetry.run_files import json_fields, replacing
from headrace.telemetry.samples import prompt_text
from headrace.telemetry.shadow_table import ShadowSums, add_shadow_metrics, shadow_means
from headrace.types import Prompt, Rollout, RolloutReward

NUM_EXAMPLES = 3
"""Held-out prompts whose answers before and after are kept."""


@dataclass(slots=True, kw_only=True)
class _Totals:
    """Sums since the run began. JSON values only, so that a checkpoint can hold them."""

    version: int = 0
    wall_seconds: float = 0.0
    loop_seconds: float = 0.0
    waiting_seconds: float = 0.0
    engine_working_seconds: float = 0.0
    tokens_generated: int = 0
    tokens_trained: int = 0
    staleness_worst: int = 0
    staleness_sum: int = 0
    staleness_tokens: int = 0
    mismatch_kl_sum: float = 0.0
    mismatch_kl_steps: int = 0
    reverse_kl_first: float | None = None
    reverse_kl_last: float | None = None
    skipped_updates: int = 0
    reward_failures: int = 0
    interruptions: int = 0
    peak_resident_bytes: int = 0
    evaluation_before: dict[str, float] = field(default_factory=dict[str, float])
    evaluation_after: dict[str, float] = field(default_factory=dict[str, float])
    examples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ledger: dict[str, Any] = field(default_factory=dict[str, Any])
    shadow: ShadowSums = field(default_factory=ShadowSums)


class SummaryBuilder:
    """Sink that adds a run up, across resumes.

    Args:
        state: What `state()` gave to the checkpoint that the run goes on from; None for a new run.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._totals = _Totals(**(state or {}))
        self._previous: StepFinished | None = None
        self._finished: RunFinished | None = None

    def handle(self, time: float, event: Event) -> None:
        """Add an event up."""
        totals = self._totals
        totals.wall_seconds = time
        match event:
            case StepFinished():
                self._add_step(event)
            case EvaluationFinished():
                self._add_evaluation(event)
            case RunFinished():
                self._finished = event
                totals.ledger = json_fields(event.ledger)
            case _:
                pass

    def close(self) -> None:
        """Nothing is open."""

    def state(self) -> dict[str, Any]:
        """The sums so far, as JSON values, for the checkpoint."""
        return asdict(self._totals)

    def summary(self) -> dict[str, Any]:
        """The contents of `summary.json`.

        `finished`: the last step was reached; `interrupted`: the user stopped the run; neither: it broke. Rates and shares are over
        the seconds from the start to the last step, evaluations included. `accuracy_…` is the held-out reward (the accuracy, when
        the reward is 0 or 1), None without evaluations or rewards. `reverse_kl_…`: distance to the teacher in the first and in the last
        step, None without one. `tokens_generated` counts evaluations and unfinished rollouts too,
        `tokens_trained` the tokens that carried the loss. `reward_failures` are rollouts of trained groups; groups that were
        discarded for failures are in the ledger. Memory: `peak_resident_bytes` of `telemetry/memory.py`, sampled after every step.
        `shadow`, where algorithms were compared: means of their metrics over the steps that compared them.
        """
        totals, finished = self._totals, self._finished
        before, after = totals.evaluation_before, totals.evaluation_after
        return {
            "finished": finished is not None and not finished.interrupted,
            "interrupted": finished is not None and finished.interrupted,
            "steps": totals.version,
            "accuracy_before": before.get("eval/reward"),
            "accuracy_after": after.get("eval/reward"),
            "reverse_kl_first": totals.reverse_kl_first,
            "reverse_kl_last": totals.reverse_kl_last,
            "wall_seconds": totals.wall_seconds,
            "tokens_generated": totals.tokens_generated,
            "tokens_trained": totals.tokens_trained,
            "tokens_per_second_generated": _ratio(totals.tokens_generated, totals.loop_seconds),
            "tokens_per_second_trained": _ratio(totals.tokens_trained, totals.loop_seconds),
            "worst_staleness": totals.staleness_worst,
            "mean_staleness": _ratio(totals.staleness_sum, totals.staleness_tokens),
            "mean_mismatch_kl": _ratio(totals.mismatch_kl_sum, totals.mismatch_kl_steps),
            "trainer_wait_share": _ratio(totals.waiting_seconds, totals.loop_seconds),
            "engine_wait_share": _idle_share(totals.engine_working_seconds, totals.loop_seconds),
            "interruptions": totals.interruptions,
            "skipped_updates": totals.skipped_updates,
            "reward_failures": totals.reward_failures,
            "peak_resident_bytes": totals.peak_resident_bytes,
            "ledger": totals.ledger,
            "evaluation_before": before,
            "evaluation_after": after,
            "examples": totals.examples,
            **({"shadow": shadow_means(totals.shadow)} if totals.shadow else {}),
        }

    def write(self, path: Path) -> None:
        """Write `summary()` as JSON; the file appears whole or not at all.

        Raises:
            RunFolderError: The disk is full, or the file cannot be written.
        """
        with replacing(path) as aside:
            aside.write_text(json.dumps(self.summary(), indent=2, allow_nan=False) + "\n")

    def _add_step(self, event: StepFinished) -> None:
        totals, engine, staleness = self._totals, engine_since(event, self._previous), token_staleness(event)
        self._previous = event
        totals.version = event.report.version
        totals.loop_seconds += event.timings.total
        totals.waiting_seconds += event.timings.waiting_for_groups
        totals.engine_working_seconds += engine.busy_seconds + engine.loading_seconds
        totals.tokens_generated += engine.generated_tokens
        totals.tokens_trained += event.report.num_loss_tokens
        totals.interruptions += engine.interruptions
        totals.skipped_updates += event.report.skipped_updates
        totals.reward_failures += sum(reward.error is not None for _, reward, _ in rollouts_of(event))
        totals.staleness_worst = max(totals.staleness_worst, int(staleness.max(initial=0)))
        totals.staleness_sum += int(staleness.sum())
        totals.staleness_tokens += int(staleness.size)
        totals.peak_resident_bytes = max(totals.peak_resident_bytes, peak_resident_bytes())
        totals.ledger = json_fields(event.ledger)
        add_shadow_metrics(totals.shadow, finite(dict(event.report.metrics)))
        if (distance := distance_metrics(event).get(REVERSE_KL)) is not None:
            totals.reverse_kl_first = distance if totals.reverse_kl_first is None else totals.reverse_kl_first
            totals.reverse_kl_last = distance
        for mismatch_kl in finite({"": event.report.metrics.get("mismatch_kl", float("nan"))}).values():
            totals.mismatch_kl_sum += mismatch_kl
            totals.mismatch_kl_steps += 1

    def _add_evaluation(self, event: EvaluationFinished) -> None:
        totals = self._totals
        metrics = {"version": event.version, **finite(dict(event.metrics))}
        if not totals.evaluation_before:
            totals.evaluation_before = metrics
            totals.examples = _first_examples(event.answers)
        else:
            totals.evaluation_after = metrics
            _answer_again(totals.examples, event.answers)


def _first_examples(answers: Sequence[tuple[Prompt, Rollout, RolloutReward]]) -> list[dict[str, Any]]:
    by_row: dict[int, dict[str, Any]] = {}
    for prompt, rollout, reward in answers:
        if len(by_row) < NUM_EXAMPLES:
            by_row.setdefault(
                prompt.row, {"row": prompt.row, "prompt": prompt_text(prompt), "before": _answer(rollout, reward), "after": None}
            )
    return list(by_row.values())


def _answer_again(examples: Sequence[dict[str, Any]], answers: Sequence[tuple[Prompt, Rollout, RolloutReward]]) -> None:
    first_answers = {prompt.row: _answer(rollout, reward) for prompt, rollout, reward in reversed(answers)}
    for example in examples:
        example["after"] = first_answers.get(example["row"])


def _answer(rollout: Rollout, reward: RolloutReward) -> dict[str, Any]:
    return {"completion": rollout.text, "reward": reward.total}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _idle_share(working_seconds: float, wall_seconds: float) -> float | None:
    return max(0.0, 1.0 - working_seconds / wall_seconds) if wall_seconds > 0 else None
