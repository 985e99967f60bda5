"""`[sampling]`, `[engine]` and `[evaluation]`: how completions are drawn."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.config.base import Section


class SamplingSection(Section):
    """How training rollouts are drawn."""

    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature; the trainer scales its log-probabilities by it too, so that ratios compare like with like."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling. Training refuses values below 1, because its ratios are over the whole vocabulary."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all. Training refuses other values."""
    max_completion_length: int = Field(default=256, ge=1)
    """Tokens of a completion, the stop token included."""
    stop_strings: list[str] = []
    """A completion ends with the token that completes one of these."""

    @model_validator(mode="after")
    def _full_distribution(self) -> "SamplingSection":
        if self.top_p < 1 or self.top_k > 0:
            raise ValueError(
                f"top_p={self.top_p:g} and top_k={self.top_k} cut the distribution that rollouts are drawn from, while the trainer's ratio "
                "is over the whole vocabulary, so every importance ratio would be biased; set top_p = 1 and top_k = 0 "
                "(evaluation.top_p and evaluation.top_k are free)"
            )
        return self


class EngineSection(Section):
    """The embedded rollout engine."""

    max_concurrent_sequences: int = Field(default=64, ge=1)
    """Rollouts decoded together; further ones wait."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the engine's weights and cache. `auto`: bfloat16 where the hardware is fast at it, else float32."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """CPU threads for generation. `auto`: all cores while the trainer is idle, half of them while it computes."""


class EvaluationSection(Section):
    """How the held-out prompts are answered. Greedy by default, whatever training samples with."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """Tokens; unset takes `sampling.max_completion_length`."""
    num_rollouts: int = Field(default=1, ge=1)
    """Completions of each prompt; above 1, `pass@k` is reported beside the mean."""
    every_steps: int = Field(default=0, ge=0)
    """Evaluate during training every so many steps; 0 evaluates before and after only."""

    @model_validator(mode="after")
    def _greedy_once(self) -> "EvaluationSection":
        if self.temperature == 0 and self.num_rollouts > 1:
            raise ValueError(
                f"temperature = 0 gives the same completion {self.num_rollouts} times; set num_rollouts = 1 or a temperature above 0"
            )
        return self
