"""`[training]` and `[checkpoint]`: the optimizer, the shape of its batches, and what is kept."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.config.base import Section


class TrainingSection(Section):
    """The optimizer and the shape of its batches."""

    prompts_per_step: int = Field(default=8, ge=1)
    """Groups that a training step consumes (B)."""
    max_steps: int | None = Field(default=None, ge=1)
    """Training steps; unset trains `num_train_epochs`."""
    num_train_epochs: int = Field(default=1, ge=1)
    """Passes over the prompts, when `max_steps` is not set. An epoch's last incomplete batch is filled from the next epoch; the run's last
    step trains on what is left."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """AdamW's peak learning rate."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up, over all optimizer updates. Without `max_steps` these are counted as if no group were
    discarded: with `algorithm.dynamic_sampling` the run then ends before the rate has fallen to 0."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the mean."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay of the square."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient is scaled down to this norm."""
    token_budget: int = Field(default=4096, ge=1)
    """Tokens of a micro-batch, prompts included: what memory depends on."""
    autocast: Literal["auto", "bfloat16", "none"] = "auto"
    """Arithmetic of the forward pass; weights stay float32. `auto`: bfloat16 where the hardware is fast at it."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """CPU threads for training, and for each teacher or reference in this process. `auto`: those that nobody else computes with."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    def num_steps(self, num_prompts: int) -> int:
        """Training steps of the whole run on a data set of so many prompts, when no group is discarded."""
        return self.max_steps or math.ceil(self.num_train_epochs * num_prompts / self.prompts_per_step)

    @model_validator(mode="after")
    def _warmup_fits(self) -> "TrainingSection":
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} is more than max_steps = {self.max_steps}; the learning rate would never be reached"
            )
        return self


class CheckpointSection(Section):
    """What a run keeps of itself."""

    every_steps: int = Field(default=50, ge=1)
    """Steps between checkpoints; one is always written at the end and on Ctrl-C."""
    keep_last: int = Field(default=2, ge=1)
    """Older checkpoints are removed."""
