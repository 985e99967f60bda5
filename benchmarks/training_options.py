"""What options of training cost, beside the same without them.

    python benchmarks/training_options.py --model DIR [--only shadow lora] [--runs 9] [--json]

shadow   seconds of a training step, by the number of algorithms that are compared in it; its tokens are of two stalenesses
lora     a training step, publishing and decoding: all weights, and an adapter

The last line of the output is one JSON object.
"""

import argparse
import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import headrace  # noqa: F401 - before torch, as it sets how OpenMP's threads wait

# isort: split
import numpy as np
from decode import NEW_TOKENS, decoding, tokenize
from grouped_samples import QUICKSTART, grouped_rows
from interleaving import interleaved, medians, rounded, timed
from policy_trainers import AUTOCAST, TOKEN_BUDGET, accumulate, load_policy, policy_trainer
from publishing import publishing
from sections import Sections, run_sections, section_parser
from transformers import AutoTokenizer, PreTrainedModel

from headrace.config.algorithm import AlgorithmSection
from headrace.config.lora import LoraSection
from headrace.config.named_algorithms import AlgorithmName
from headrace.launch.adapters import add_adapter
from headrace.training.frozen_policy import FrozenPolicy
from headrace.training.policy_trainer import PolicyTrainer
from headrace.training.shadow import Shadows
from headrace.types import Floats, Rollout, Sample, SharedPromptRow

SHADOWS: tuple[AlgorithmName, ...] = ("areal", "a3po", "gspo", "cispo", "dapo", "sapo")
COUNTS = (0, 1, 3, 6)
DRIFT = 0.1
"""Deviation of the log-probabilities that an older version sampled with: some tokens are clipped, most are not."""
LORA = LoraSection(rank=16, alpha=32)
SEQUENCES = 64


def main(argv: Sequence[str] | None = None) -> None:
    arguments = section_parser(__doc__, SECTIONS, runs=9).parse_args(argv)
    run_sections("training_options", SECTIONS, arguments, {"lora": LORA.model_dump()})


def measure_shadow(arguments: argparse.Namespace) -> dict[str, object]:
    model = load_policy(arguments.model)
    rows = stale_rows(model)
    steps = {
        str(count): step_of(policy_trainer(copy.deepcopy(model), shadows=shadows(SHADOWS[:count])), compared(rows, SHADOWS[:count]))
        for count in COUNTS
    }
    seconds = interleaved(steps, runs=arguments.runs)
    middle = medians(seconds)
    return {
        "seconds_per_step": {count: rounded(value) for count, value in middle.items()},
        "more_time": {count: rounded(value / middle["0"] - 1) for count, value in middle.items() if count != "0"},
        "seconds": seconds,
    }


def shadows(names: Sequence[AlgorithmName]) -> Shadows | None:
    """None for no names, as when the recipe has no `[shadow]`."""
    if not names:
        return None
    algorithms = {name: AlgorithmSection(name=name, dynamic_sampling=False) for name in names}
    return Shadows(algorithms=algorithms, token_losses={}, num_layers=1, every_steps=1)


def compared(rows: Sequence[SharedPromptRow], names: Sequence[AlgorithmName]) -> list[SharedPromptRow]:
    """The rows, with the applied algorithm's advantages for the others too."""

    def of(sample: Sample) -> Sample:
        return replace(sample, shadow_advantages=dict.fromkeys(names, sample.advantages))

    return [replace(row, samples=tuple(map(of, row.samples))) for row in rows]


def step_of(trainer: PolicyTrainer, rows: Sequence[SharedPromptRow]) -> Callable[[], float]:
    def step() -> None:
        accumulate(trainer, rows)
        trainer.step()

    def measure() -> float:
        trainer.resume_at(1)
        return timed(step)

    return measure


def stale_rows(model: PreTrainedModel) -> list[SharedPromptRow]:
    """Completions that version 0 began and version 1 ended, a little away from what the model says of them now."""
    rows = grouped_rows(**QUICKSTART, vocabulary=model.config.vocab_size)
    draw = np.random.default_rng(0)

    def stale(sample: Sample, logprobs: Floats) -> Sample:
        count = len(logprobs)
        return replace(
            sample,
            logprobs=logprobs + DRIFT * draw.standard_normal(count).astype(np.float32),
            versions=(np.arange(count) >= count // 2).astype(np.int32),
        )

    return [
        replace(row, samples=tuple(map(stale, row.samples, of_samples)))
        for row, of_samples in zip(rows, present_logprobs(model, rows), strict=True)
    ]


def present_logprobs(model: PreTrainedModel, rows: Sequence[SharedPromptRow]) -> list[tuple[Floats, ...]]:
    """What the model says of the tokens of each sample, row by row."""
    policy = FrozenPolicy(copy.deepcopy(model), temperature=1.0, autocast_dtype=AUTOCAST, token_budget=TOKEN_BUDGET)
    return [policy.logprobs(row.prompt_ids, list(map(rollout_of, row.samples))) for row in rows]


def rollout_of(sample: Sample) -> Rollout:
    return Rollout(
        completion_ids=sample.completion_ids, logprobs=sample.logprobs, versions=sample.versions, finish_reason="length", text=""
    )


def measure_lora(arguments: argparse.Namespace) -> dict[str, object]:
    whole = load_policy(arguments.model)
    adapted = copy.deepcopy(whole)
    add_adapter(adapted, LORA, base=arguments.model, seed=0)
    rows, tokenizer = stale_rows(whole), AutoTokenizer.from_pretrained(arguments.model)
    prompt_ids = tokenize(tokenizer)
    measures: dict[str, dict[str, Callable[[], float]]] = {"step": {}, "publish": {}, "decode": {}}
    with ExitStack() as stack:
        for name, model in {"all weights": whole, "adapter": adapted}.items():
            publish = stack.enter_context(publishing(model, tokenizer=tokenizer, threads=arguments.threads))
            engine = copy.deepcopy(model).to(AUTOCAST)
            decode = stack.enter_context(decoding(engine, tokenizer, prompt_ids, max_sequences=SEQUENCES, threads=arguments.threads))
            measures["step"][name] = step_of(policy_trainer(copy.deepcopy(model)), rows)
            measures["publish"][name] = publish
            measures["decode"][name] = partial(decode, SEQUENCES)
        seconds = {what: interleaved(candidates, runs=arguments.runs) for what, candidates in measures.items()}
    middle = {what: medians(of_what) for what, of_what in seconds.items()}
    return {
        "seconds_per_step": {name: rounded(value) for name, value in middle["step"].items()},
        "seconds_per_publish": {name: rounded(value) for name, value in middle["publish"].items()},
        "decoded_tokens_per_second": {name: rounded(SEQUENCES * NEW_TOKENS / value) for name, value in middle["decode"].items()},
        "seconds": seconds,
    }


SECTIONS: Sections = {"shadow": measure_shadow, "lora": measure_lora}


if __name__ == "__main__":
    main()
