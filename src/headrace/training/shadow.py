"""Compares algorithms with the one that is applied, on its own batches and at the weights that the step starts from.

A policy loss depends on the weights through the log-probabilities of tokens alone, so its gradient is Σ_t c_t · ∇ log π_t, with slopes
c_t = ∂ loss / ∂ log π_t that take no pass through the model. For all algorithms together, ∂ log π_t / ∂ hidden state is needed once; from
there each goes back through the last layers only. Every token is so counted exactly once, under its staleness.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.algorithms.corrections import largest_trusted_distance
from headrace.algorithms.normalisers import Normaliser
from headrace.algorithms.ratios import log_ratios, masked
from headrace.config.algorithm import AlgorithmSection, M2poSurrogate
from headrace.config.shadow import APPLIED
from headrace.training.adapter import learning_parameters
from headrace.training.collation import CollatedRows, tokens_with_signal
from headrace.training.composition import Composition, TokenLossFunction, compose, normaliser_of
from headrace.training.gradient_sums import GradientSums, last_weights
from headrace.training.logprobs import TokenScores
from headrace.training.objective import loss_tokens
from headrace.training.policy_model import PolicyModel
from headrace.training.shadow_metrics import ShadowMetrics, token_sums
from headrace.types import MicroBatch, Sample

_SMALLEST_SLOPE = 1e-6
"""Beside the largest one; a token with a smaller slope says too little about its own gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadows:
    """What is compared with the applied algorithm."""

    algorithms: Mapping[str, AlgorithmSection]
    """By label."""
    token_losses: Mapping[str, TokenLossFunction | None]
    """Of those whose surrogate is the user's function."""
    num_layers: int
    every_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """An algorithm as far as its policy loss goes."""

    composition: Composition
    normaliser: Normaliser

    def counts(self, advantages: Tensor, rows: CollatedRows) -> Tensor:
        """Which tokens it learns from [tokens]: not those of samples that it leaves out, where advantages are NaN."""
        present = ~advantages.isnan()
        return present if self.composition.learns_without_advantage else present & tokens_with_signal(advantages, rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AppliedPass:
    """What the applied algorithm is given for a forward pass."""

    advantages: Tensor
    """[tokens]."""
    start_logprobs: Tensor | None
    """Of the weights that the step started from [tokens]; None when these are the present ones."""
    trusted_distance: float | None


class ShadowComparison:
    """Collects, pass by pass, what the algorithms make of a step's first update.

    Args:
        policy: The model that learns.
        applied: The algorithm that it learns by.
        has_entropy: Whether the applied loss has an entropy term.
        computes_all: Whether samples without an advantage are computed for it, too.
        shadows: The others.
        max_completion_length: Tokens; the constant of `denominator = "constant"`.

    Raises:
        ModelError: Nothing in the model's last layers learns.
    """

    def __init__(
        self,
        policy: PolicyModel,
        *,
        applied: PolicyObjective,
        has_entropy: bool,
        computes_all: bool,
        shadows: Shadows,
        max_completion_length: int,
    ) -> None:
        self._policy = policy
        self._has_entropy = has_entropy
        self._computes_all = computes_all
        self._shadows = shadows
        self._objectives = {APPLIED: applied} | {
            label: PolicyObjective(
                composition=compose(algorithm, token_losses=shadows.token_losses.get(label)),
                normaliser=normaliser_of(algorithm, max_completion_length),
            )
            for label, algorithm in shadows.algorithms.items()
        }
        self._weights = last_weights(policy.model, shadows.num_layers)
        chosen = set(map(id, self._weights))
        self._others = [weight for weight in learning_parameters(policy.model).values() if id(weight) not in chosen]
        self.clear()

    @property
    def needs_whole_update(self) -> bool:
        """Whether an algorithm must see all passes of an update before its loss of any of them is known."""
        return bool(self._thresholds)

    @property
    def _thresholds(self) -> dict[str, float]:
        surrogates = {label: algorithm.surrogate for label, algorithm in self._shadows.algorithms.items()}
        return {label: surrogate.threshold for label, surrogate in surrogates.items() if isinstance(surrogate, M2poSurrogate)}

    def is_due(self, micro_batch: MicroBatch) -> bool:
        """Whether it is compared: of a step that is, those of the first update, as later ones start from weights that are moved already."""
        return micro_batch.minibatch == 0 and micro_batch.version % self._shadows.every_steps == 0

    @torch.no_grad()
    def look_ahead(self, update: Mapping[MicroBatch, Sequence[CollatedRows]]) -> None:
        """Score all tokens of an update, for the algorithms that need it, before any of its micro-batches is compared.

        Args:
            update: The passes that are computed for the applied algorithm, by micro-batch.
        """
        if not self.needs_whole_update or not all(map(self.is_due, update)):
            return
        self._left_out = {micro_batch: self._passes_left_out(micro_batch) for micro_batch in update}
        passes = [rows for micro_batch, own in update.items() for rows in (*own, *self._left_out[micro_batch])]
        self._start_logprobs = {rows: self._policy.score(rows).logprobs for rows in passes}
        for label, threshold in self._thresholds.items() if passes else ():
            distances = [
                log_ratios(logprobs, rows.behaviour_logprobs).square()[tokens_with_signal(rows.shadow_advantages[label], rows)]
                for rows, logprobs in self._start_logprobs.items()
            ]
            self._trusted_distances[label] = largest_trusted_distance(torch.cat(distances), threshold=threshold)

    def backward(
        self, loss_sum: Tensor, rows: CollatedRows, hidden: Tensor, scores: TokenScores, applied: AppliedPass, *, version: int
    ) -> None:
        """What `loss_sum.backward()` does, to the bit, and the comparison on the way.

        Args:
            loss_sum: The applied loss of the pass, with its KL and entropy terms.
            rows: The pass.
            hidden: Final hidden states [positions, hidden].
            scores: Made of them.
            applied: What the loss was made of.
            version: Trainer version that trains on the pass.
        """
        slopes, grad_hidden = torch.autograd.grad(loss_sum, [scores.logprobs, hidden])
        gradients = self._logprob_gradients(rows, hidden, slopes, grad_hidden)
        self._compare(rows, hidden, scores, gradients, applied, version=version)
        hidden.backward(grad_hidden)

    def compare_left_out(self, micro_batch: MicroBatch) -> None:
        """Compare on the samples that are not computed for the applied algorithm, but that another one learns from."""
        passes = self._left_out.pop(micro_batch, None)
        for rows in self._passes_left_out(micro_batch) if passes is None else passes:
            hidden = self._policy.backbone.hidden_states(rows)
            with torch.no_grad():
                scores = self._policy.score_hidden(hidden, rows)
            gradients = self._policy.logprob_gradients(hidden, rows, torch.arange(rows.num_loss_tokens, device=hidden.device))
            applied = AppliedPass(advantages=rows.advantages, start_logprobs=None, trusted_distance=None)
            self._compare(rows, hidden, scores, gradients, applied, version=micro_batch.version)

    def take_metrics(self) -> dict[str, float]:
        """Of the step that has ended; the next one starts."""
        metrics = self._metrics.report(self._gradients.products())
        self.clear()
        return metrics

    def clear(self) -> None:
        """Forget the step so far."""
        self._gradients: GradientSums[tuple[str, int]] = GradientSums(self._weights, others=self._others)
        self._metrics = ShadowMetrics()
        self._trusted_distances: dict[str, float] = {}
        self._left_out: dict[MicroBatch, list[CollatedRows]] = {}
        self._start_logprobs: dict[CollatedRows, Tensor] = {}

    def _passes_left_out(self, micro_batch: MicroBatch) -> list[CollatedRows]:
        idle = [] if self._computes_all else micro_batch.rows
        rows = [
            replace(row, samples=tuple(sample for sample in row.samples if not sample.advantages.any() and self._others_learn_from(sample)))
            for row in (*idle, *micro_batch.shadow_rows)
        ]
        return self._policy.passes(rows)

    def _others_learn_from(self, sample: Sample) -> bool:
        return any(
            advantages is not None and (self._objectives[label].composition.learns_without_advantage or advantages.any())
            for label, advantages in sample.shadow_advantages.items()
        )

    def _logprob_gradients(self, rows: CollatedRows, hidden: Tensor, slopes: Tensor, grad_hidden: Tensor) -> Tensor:
        """∂ log π / ∂ hidden state of every token [tokens, hidden].

        The applied loss has it as slope · gradient, which is divided, except where several tokens share a position or the slope is next
        to nothing; an entropy term would be in it everywhere.
        """
        counts = torch.bincount(rows.position_of_token, minlength=len(hidden))
        known = (counts[rows.position_of_token] == 1) & (slopes.abs() > _SMALLEST_SLOPE * slopes.abs().max())
        if self._has_entropy:
            known = torch.zeros_like(known)
        gradients = grad_hidden[rows.position_of_token].float() / slopes[:, None]
        unknown = (~known).nonzero()[:, 0]
        if len(unknown):
            gradients[unknown] = self._policy.logprob_gradients(hidden, rows, unknown)
        return gradients

    def _compare(
        self, rows: CollatedRows, hidden: Tensor, scores: TokenScores, gradients: Tensor, applied: AppliedPass, *, version: int
    ) -> None:
        staleness = version - rows.versions
        own = {
            label: AppliedPass(
                advantages=advantages, start_logprobs=self._start_logprobs.get(rows), trusted_distance=self._trusted_distances.get(label)
            )
            for label, advantages in rows.shadow_advantages.items()
        }
        for label, given in ({APPLIED: applied} | own).items():
            slopes, sums = _evaluate(self._objectives[label], rows, scores, given, staleness)
            for each in staleness.unique().tolist():
                members = staleness == each
                self._metrics.add(label, each, sums[members].sum(dim=0))
                of_members = masked(slopes, members)
                if of_members.any():
                    grad = torch.zeros_like(hidden, dtype=torch.float32)
                    grad.index_add_(0, rows.position_of_token, of_members[:, None] * gradients)
                    self._gradients.add((label, each), hidden, grad.to(hidden.dtype))


def _evaluate(
    objective: PolicyObjective, rows: CollatedRows, scores: TokenScores, given: AppliedPass, staleness: Tensor
) -> tuple[Tensor, Tensor]:
    """Slopes [tokens], and numbers to add up [tokens, 5]."""
    logprobs = scores.logprobs.detach().requires_grad_()
    mask = objective.counts(given.advantages, rows)
    tokens = loss_tokens(rows, replace(scores, logprobs=logprobs), given.advantages, mask, objective.normaliser)
    loss = objective.composition.loss(
        tokens, staleness=staleness, start_logprobs=given.start_logprobs, trusted_distance=given.trusted_distance
    )
    (slopes,) = torch.autograd.grad(loss.loss_sum, logprobs)
    return slopes, token_sums(tokens, loss, slopes)
