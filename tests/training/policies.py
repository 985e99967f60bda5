"""Tiny random policies and samples to train them on."""

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from headrace.config.algorithm import AlgorithmSection
from headrace.config.training import TrainingSection
from headrace.training.composition import TokenLossFunction
from headrace.training.policy_trainer import PolicyTrainer
from headrace.training.shadow import Shadows
from headrace.types import MicroBatch, Sample, SharedPromptRow

VOCABULARY = 61

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def policy(model_type: str = "llama", *, seed: int = 0, **settings: object) -> PreTrainedModel:
    """A random model, with weights large enough that every token's logits depend on what it sees."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **SIZES | settings)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "embed" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def sample(length: int, rng: np.random.Generator, *, version: int = 0) -> Sample:
    return Sample(
        completion_ids=rng.integers(3, VOCABULARY, length).astype(np.int32),
        logprobs=(-4 + 0.3 * rng.normal(size=length)).astype(np.float32),
        versions=np.full(length, version, np.int32),
        advantages=np.full(length, rng.normal(), np.float32),
    )


def row(prompt_length: int, completion_lengths: tuple[int, ...], *, seed: int, version: int = 0) -> SharedPromptRow:
    rng = np.random.default_rng(seed)
    return SharedPromptRow(
        group_id=seed,
        prompt_ids=tuple(rng.integers(3, VOCABULARY, prompt_length).tolist()),
        samples=tuple(sample(length, rng, version=version) for length in completion_lengths),
    )


def batch(*rows: SharedPromptRow, version: int = 0, minibatch: int = 0) -> MicroBatch:
    return MicroBatch(version=version, minibatch=minibatch, rows=rows)


def trainer(
    model: PreTrainedModel,
    *,
    algorithm: AlgorithmSection | None = None,
    training: TrainingSection | None = None,
    temperature: float = 1.0,
    reference: PreTrainedModel | None = None,
    total_steps: int = 6,
    autocast_dtype: torch.dtype | None = None,
    token_losses: TokenLossFunction | None = None,
    shadows: Shadows | None = None,
) -> PolicyTrainer:
    return PolicyTrainer(
        model,
        algorithm=algorithm or AlgorithmSection(),
        training=training or TrainingSection(learning_rate=1e-2),
        temperature=temperature,
        max_completion_length=8,
        total_steps=total_steps,
        autocast_dtype=autocast_dtype,
        reference=reference,
        token_losses=token_losses,
        shadows=shadows,
    )


def parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def relative_gap(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm, all tensors together."""
    assert left.keys() == right.keys()
    gap = sum(float((left[name] - right[name]).double().square().sum()) for name in left)
    size = sum(float(tensor.double().square().sum()) for tensor in left.values())
    return (gap / size) ** 0.5
