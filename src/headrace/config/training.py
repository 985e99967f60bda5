"""`[algorithm]`, `[training]` and `[checkpoint]`: what is learned from a batch, and how."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.config.base import Section


class BehaviourProximal(Section):
    """The proximal policy is the one that sampled: ordinary PPO against the recorded log-probabilities."""

    type: Literal["behaviour"] = "behaviour"


class RecomputeProximal(Section):
    """Decoupled PPO (AReaL, Eq. 5): the proximal policy is the one at the start of the step."""

    type: Literal["recompute"] = "recompute"
    behaviour_weight_cap: float = Field(default=5.0, gt=1)
    """Largest weight pi_prox / pi_behaviour of a token."""
    beyond_cap: Literal["mask", "clamp"] = "mask"
    """A token whose weight exceeds the cap is left out, or weighs as much as the cap."""


class LoglinearProximal(Section):
    """A-3PO: the proximal policy is interpolated from the step's own log-probabilities, without a forward pass."""

    type: Literal["loglinear"] = "loglinear"
    behaviour_weight_cap: float = Field(default=5.0, gt=1)
    """Largest weight pi_prox / pi_behaviour of a token."""
    beyond_cap: Literal["mask", "clamp"] = "mask"
    """A token whose weight exceeds the cap is left out, or weighs as much as the cap."""


ProximalPolicy = Annotated[BehaviourProximal | RecomputeProximal | LoglinearProximal, Field(discriminator="type")]


class AlgorithmSection(Section):
    """GRPO: group advantages and a clipped surrogate."""

    num_generations: int = Field(default=8, ge=2)
    """Rollouts of each prompt. At least 2: an advantage compares siblings."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide centred rewards by the standard deviation of the group, of the batch, or not at all (Dr. GRPO)."""
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below 1 - epsilon …"""
    epsilon_high: float | None = Field(default=None, gt=0)
    """… and above 1 + epsilon_high; unset takes `epsilon`."""
    proximal: ProximalPolicy = BehaviourProximal()
    """The policy that the ratio is clipped against."""
    denominator: Literal["tokens", "sequences", "constant"] = "tokens"
    """What the summed loss is divided by: the batch's completion tokens (TRL's `dapo`), each sequence's own tokens and then the sequences
    (`grpo`), or completions · max_completion_length (`dr_grpo`)."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence (k3 estimator) to the initial policy; above 0 a frozen copy of it is kept."""
    entropy_coefficient: float = 0.0
    """Weight of the policy's entropy, which is added to the objective."""
    num_minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per step, each on its share of the batch."""
    mask_truncated_completions: bool = False
    """Leave completions that hit the length limit out of the loss and out of their group's statistics."""

    @property
    def clip_high(self) -> float:
        """Upper clip distance in force."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


class TrainingSection(Section):
    """The optimizer and the shape of its batches."""

    prompts_per_step: int = Field(default=8, ge=1)
    """Groups that a training step consumes (B)."""
    max_steps: int | None = Field(default=None, ge=1)
    """Training steps; unset trains `num_train_epochs`."""
    num_train_epochs: int = Field(default=1, ge=1)
    """Passes over the prompts, when `max_steps` is not set. An epoch's last incomplete batch is filled from the next epoch; the run's last
    one is left out."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """AdamW's peak learning rate."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up, over all optimizer updates."""
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
    """CPU threads for training. `auto`: all cores while the engine is idle, half of them while it computes."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

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
