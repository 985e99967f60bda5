"""headrace's trainer as the benchmarks use it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from grouped_samples import micro_batches
from transformers import AutoModelForCausalLM, PreTrainedModel

from headrace.config.algorithm import AlgorithmSection
from headrace.config.named_algorithms import AlgorithmName
from headrace.config.training import TrainingSection
from headrace.training.policy_trainer import PolicyTrainer
from headrace.training.shadow import Shadows
from headrace.types import SharedPromptRow

AUTOCAST = torch.bfloat16
TOKEN_BUDGET = 2560
"""Tokens of a pass, padding included, that all samples of `QUICKSTART` fit in."""


def load_policy(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def policy_trainer(
    model: PreTrainedModel,
    *,
    token_budget: int = TOKEN_BUDGET,
    algorithm: AlgorithmName = "grpo",
    num_minibatches: int = 1,
    autocast_dtype: torch.dtype | None = AUTOCAST,
    shadows: Shadows | None = None,
) -> PolicyTrainer:
    """A trainer that takes the model over."""
    return PolicyTrainer(
        model,
        algorithm=AlgorithmSection(name=algorithm, denominator="tokens", num_minibatches=num_minibatches),
        training=TrainingSection(learning_rate=1e-6, token_budget=token_budget),
        temperature=1.0,
        max_completion_length=64,
        total_steps=1000,
        autocast_dtype=autocast_dtype,
        reference=None,
        shadows=shadows,
    )


def accumulate(
    trainer: PolicyTrainer, rows: Sequence[SharedPromptRow], *, token_budget: int = TOKEN_BUDGET, num_minibatches: int = 1
) -> None:
    """Hand the trainer what it trains on in a step."""
    for micro_batch in micro_batches(rows, version=trainer.version, token_budget=token_budget, num_minibatches=num_minibatches):
        trainer.accumulate(micro_batch)
