"""headrace's trainer as the benchmarks use it."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from headrace.config.algorithm import AlgorithmSection
from headrace.config.named_algorithms import AlgorithmName
from headrace.config.training import TrainingSection
from headrace.training.policy_trainer import PolicyTrainer

AUTOCAST = torch.bfloat16


def load_policy(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def policy_trainer(
    model: PreTrainedModel,
    *,
    token_budget: int,
    algorithm: AlgorithmName = "grpo",
    num_minibatches: int = 1,
    autocast_dtype: torch.dtype | None = AUTOCAST,
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
    )
