"""Samples to look at: the prompts, completions and rewards of training steps and evaluations, as Parquet files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.telemetry.distances import reverse_kl
from headrace.telemetry.events import EvaluationFinished, Event, StepFinished, TrainedGroup
from headrace.telemetry.run_files import replacing
from headrace.types import Floats, Prompt, Rollout, RolloutReward

_COLUMNS = (
    ("step", pa.int64()),
    ("group_id", pa.int64()),
    ("epoch", pa.int64()),
    ("row", pa.int64()),
    ("prompt", pa.string()),
    ("completion", pa.string()),
    ("reward", pa.float64()),
)
_COLUMNS_AFTER_REWARDS = (
    ("advantage", pa.float64()),
    ("min_version", pa.int64()),
    ("max_version", pa.int64()),
    ("versions", pa.list_(pa.int32())),
    ("finish_reason", pa.string()),
    ("num_tokens", pa.int64()),
    ("error", pa.string()),
)


_TEACHER_COLUMNS = (("reverse_kl", pa.float64()), ("teacher_version", pa.int64()))


class SamplesWriter:
    """Sink that writes `step_000001.parquet` for every `every`-th step, and `eval_000000.parquet` for every evaluation.

    One row a rollout. `advantage` and, with a teacher, `reverse_kl` (log π_behave - log π_teacher) are means over its tokens;
    `teacher_version` is that of a teacher that is a snapshot of the policy; `versions` has the version of each sampled token;
    `rewards/<function>` are unweighted. Null means that a function did not apply, that a reward failed (`error` says why), or that the
    rollout took no part in training.
    """

    def __init__(self, folder: Path, *, every: int = 1) -> None:
        self._folder = folder
        self._every = every

    def handle(self, time: float, event: Event) -> None:
        """Write the event's file, if it is due.

        Raises:
            RunFolderError: The disk is full, or the folder cannot be written.
        """
        match event:
            case StepFinished() if event.report.version % self._every == 0:
                rows = [row for trained in event.groups for row in _trained_rows(event.report.version, trained)]
                self._write(f"step_{event.report.version:06d}.parquet", rows)
            case EvaluationFinished():
                rows = [_row(event.version, *answer) for answer in event.answers]
                self._write(f"eval_{event.version:06d}.parquet", rows)
            case _:
                pass

    def close(self) -> None:
        """Nothing is open between files."""

    def _write(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(list(rows), schema=_schema(rows))
        with replacing(self._folder / name) as aside:
            pq.write_table(table, aside, compression="zstd")


def prompt_text(prompt: Prompt) -> str:
    """A prompt as a person reads it: its text, or its messages under their roles."""
    if isinstance(prompt.text, str):
        return prompt.text
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in prompt.text)


def _trained_rows(step: int, trained: TrainedGroup) -> Iterator[dict[str, Any]]:
    scored = trained.scored
    gaps = reverse_kl(trained, scored.teacher_logprobs)
    for rollout, reward, advantages, gap in zip(scored.rollouts, scored.rewards, trained.advantages, gaps, strict=True):
        yield {
            **_row(step, scored.group.prompt, rollout, reward),
            "group_id": scored.group.group_id,
            "advantage": None if advantages is None else float(advantages.mean()),
            **({} if scored.teacher_logprobs is None else _compared(gap, scored.teacher_version)),
        }


def _compared(gap: Floats | None, teacher_version: int | None) -> dict[str, Any]:
    return {"reverse_kl": None if gap is None else float(gap.mean()), "teacher_version": teacher_version}


def _row(step: int, prompt: Prompt, rollout: Rollout, reward: RolloutReward) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": prompt.epoch,
        "row": prompt.row,
        "prompt": _storable(prompt_text(prompt)),
        "completion": _storable(rollout.text),
        "reward": reward.total,
        **{f"rewards/{name}": value for name, value in reward.by_function.items()},
        "min_version": int(rollout.versions.min()),
        "max_version": int(rollout.versions.max()),
        "versions": rollout.versions,
        "finish_reason": rollout.finish_reason,
        "num_tokens": len(rollout.completion_ids),
        "error": None if reward.error is None else _storable(reward.error),
    }


def _schema(rows: Sequence[dict[str, Any]]) -> pa.Schema:
    functions = sorted({name for row in rows for name in row if name.startswith("rewards/")})
    compared = _TEACHER_COLUMNS if any("reverse_kl" in row for row in rows) else ()
    return pa.schema([*_COLUMNS, *((name, pa.float64()) for name in functions), *compared, *_COLUMNS_AFTER_REWARDS])


def _storable(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
