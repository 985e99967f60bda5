"""The metrics of one training step: sums and counts over its forward passes, divided once."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.algorithms.diagnostics import TokenTotals
from headrace.training.collation import CollatedRows
from headrace.training.objective import Objective


@dataclass(slots=True, kw_only=True, eq=False)
class StepMetrics:
    """Collects what the passes and the updates of a step report.

    `mismatch_kl`, `ess` and `sampling/…` compare the engine with the weights that the step starts from; so in a step of
    several updates they come from the passes before the first one. All other means are over the loss tokens of all passes, which are
    the tokens of the step that were computed.
    """

    has_behaviour_weights: bool
    """Whether the loss weighs tokens by who sampled them, or leaves some out because of it."""
    num_samples: int = 0
    num_loss_tokens: int = 0
    skipped_updates: int = 0
    _computed_loss_tokens: int = 0
    _useful_tokens: int = 0
    _padded_tokens: int = 0
    _passes: int = 0
    _loss_sum: float = 0.0
    _entropy_sum: list[Tensor] = field(default_factory=list[Tensor])
    _kl_sum: list[Tensor] = field(default_factory=list[Tensor])
    _token_totals: TokenTotals | None = None
    _start_totals: TokenTotals | None = None
    _start_log_importance: list[Tensor] = field(default_factory=list[Tensor])
    _denominators: float = 0.0
    _grad_norms: list[float] = field(default_factory=list[float])
    _learning_rate: float = 0.0

    def add_samples(self, *, num_samples: int, num_loss_tokens: int) -> None:
        """Count samples of the step, computed or not."""
        self.num_samples += num_samples
        self.num_loss_tokens += num_loss_tokens

    def add_pass(self, rows: CollatedRows, result: Objective) -> None:
        """Count one forward and backward pass. Tensors stay where they are, so that nothing waits for the device."""
        self._computed_loss_tokens += rows.num_loss_tokens
        self._useful_tokens += rows.num_useful_tokens
        self._padded_tokens += rows.num_padded_tokens
        self._passes += 1
        self._entropy_sum.append(result.entropy_sum)
        if result.kl_sum is not None:
            self._kl_sum.append(result.kl_sum)
        self._token_totals = result.token_totals if self._token_totals is None else self._token_totals + result.token_totals
        if not self._grad_norms:
            self._start_totals = self._token_totals
            self._start_log_importance.append(result.log_importance)

    def add_update(self, *, loss_sum: float, denominator: float, grad_norm: float, learning_rate: float) -> None:
        """Count one optimizer update; one with a gradient norm that is not finite was skipped."""
        self._learning_rate = learning_rate
        self._grad_norms.append(grad_norm)
        if math.isfinite(grad_norm):
            self._loss_sum += loss_sum
            self._denominators += denominator
        else:
            self.skipped_updates += 1

    def report(self) -> dict[str, float]:
        """All metrics that have a finite value; what a non-finite loss or gradient spoils is left out."""
        values = {"micro_batches": float(self._passes)}
        if self._grad_norms:
            values["learning_rate"] = self._learning_rate
        finite_norms = [norm for norm in self._grad_norms if math.isfinite(norm)]
        if finite_norms:
            values["grad_norm"] = sum(finite_norms) / len(finite_norms)
            values["loss"] = self._loss_sum / self._denominators
        if self.num_loss_tokens:
            values["computed_token_share"] = self._computed_loss_tokens / self.num_loss_tokens
        if self._token_totals is not None:
            values |= self._means(self._token_totals)
        if self._start_totals is not None:
            values |= self._comparison_with_engine(self._start_totals)
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def _means(self, totals: TokenTotals) -> dict[str, float]:
        means = {name: value for name, value in totals.metrics().items() if name.startswith(self._prefixes())}
        means |= {"entropy": _total(self._entropy_sum) / self._computed_loss_tokens, "fill": self._useful_tokens / self._padded_tokens}
        if self._kl_sum:
            means["kl"] = _total(self._kl_sum) / self._computed_loss_tokens
        return means

    def _comparison_with_engine(self, totals: TokenTotals) -> dict[str, float]:
        log_importance = torch.cat(self._start_log_importance)
        importance, gaps = log_importance.exp(), log_importance.abs()
        return {name: value for name, value in totals.metrics().items() if name in ("mismatch_kl", "ess")} | {
            "sampling/sampling_logp_difference/mean": float(gaps.mean()),
            "sampling/sampling_logp_difference/max": float(gaps.max()),
            "sampling/importance_sampling_ratio/min": float(importance.min()),
            "sampling/importance_sampling_ratio/mean": float(importance.mean()),
            "sampling/importance_sampling_ratio/max": float(importance.max()),
        }

    def _prefixes(self) -> tuple[str, ...]:
        return ("clip_ratio/", "behaviour_weight/") if self.has_behaviour_weights else ("clip_ratio/",)


def _total(sums: list[Tensor]) -> float:
    return float(torch.stack(sums).sum())
