"""The training step itself: gradients of micro-batches, and the optimizer updates made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.algorithms.corrections import largest_trusted_distance
from headrace.algorithms.normalisers import BatchCounts
from headrace.algorithms.ratios import log_ratios
from headrace.config.algorithm import AlgorithmSection, M2poSurrogate
from headrace.config.training import TrainingSection
from headrace.interfaces import Weights
from headrace.training.adapter import adapter_off, has_adapter, learning_parameters
from headrace.training.backbone import recompute_activations
from headrace.training.collation import CollatedRows, tokens_with_signal
from headrace.training.composition import TokenLossFunction, compose, normaliser_of
from headrace.training.critic import Critic, ValueEstimate
from headrace.training.learning_rate import learning_rate_factor
from headrace.training.objective import objective
from headrace.training.optimizer import PolicyOptimizer
from headrace.training.policy_model import PolicyModel
from headrace.training.shadow import AppliedPass, PolicyObjective, ShadowComparison, Shadows
from headrace.training.step_metrics import StepMetrics
from headrace.types import MicroBatch, SharedPromptRow, StepReport


@dataclass(slots=True, kw_only=True, eq=False)
class _OpenUpdate:
    """What has been accumulated for the next optimizer update, beside the gradients."""

    loss_sums: list[Tensor] = field(default_factory=list[Tensor])
    loss_tokens: int = 0
    sequences: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StepStart:
    """What the weights that a step starts from say about a pass; None where nothing depends on it."""

    logprobs: Tensor | None = None
    estimate: ValueEstimate | None = None


_START_IS_PRESENT = _StepStart()


class PolicyTrainer:
    """Trains a model step by step, in the thread that calls it.

    `accumulate` computes at once, so that training can stream, unless a step makes several updates or its loss looks at the whole batch:
    then micro-batches are kept and computed in `step`. Gradients are summed in float32 and divided once, so their order of arrival does
    not matter. Samples whose gradient is exactly zero are counted, but not computed. A critic learns in the same passes and updates.

    Args:
        model: The policy, with float32 weights that this trainer changes in place; of one with an adapter, the adapter's alone.
        algorithm: What is learned from a batch.
        training: The optimizer.
        temperature: Softmax temperature that samples are drawn with.
        max_completion_length: Tokens; the constant of `algorithm.denominator = "constant"`.
        total_steps: Training steps of the whole run, for the learning rate's course.
        autocast_dtype: Arithmetic of the forward pass; None is float32.
        reference: The frozen initial policy; needed when the loss has a KL term, unless it is the base of the model's adapter.
        token_losses: The user's function, when `algorithm.surrogate` is of type 'python'.
        critic_backbone: A model whose weights the critic changes in place; None puts a value head on the policy, where there is a critic.
        shadows: What the algorithm is compared with; they change nothing in what is trained.

    Raises:
        ModelError: The model, or the critic's, cannot be trained here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        algorithm: AlgorithmSection,
        training: TrainingSection,
        temperature: float,
        max_completion_length: int,
        total_steps: int,
        autocast_dtype: torch.dtype | None,
        reference: PreTrainedModel | None,
        token_losses: TokenLossFunction | None = None,
        critic_backbone: PreTrainedModel | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        assert reference is not None or has_adapter(model) or not algorithm.has_kl_loss, "a KL term needs a reference model"
        self.version = 0
        self.model = model
        self._algorithm = algorithm
        self._training = training
        self._total_steps = total_steps
        self._normaliser = normaliser_of(algorithm, max_completion_length)
        self._composition = compose(algorithm, token_losses=token_losses)
        self._policy = PolicyModel(model, temperature=temperature, autocast_dtype=autocast_dtype, token_budget=training.token_budget)
        self._reference = None
        if reference is not None and algorithm.has_kl_loss:
            self._reference = PolicyModel(
                reference, temperature=temperature, autocast_dtype=autocast_dtype, token_budget=training.token_budget
            )
        if training.gradient_checkpointing:
            recompute_activations(model)
        self.critic = None
        if algorithm.critic is not None:
            self.critic = Critic(
                self._policy.backbone,
                backbone=critic_backbone,
                algorithm=algorithm,
                training=training,
                normaliser=self._normaliser,
                autocast_dtype=autocast_dtype,
            )
        self._comparison = None
        if shadows is not None:
            self._comparison = ShadowComparison(
                self._policy,
                applied=PolicyObjective(composition=self._composition, normaliser=self._normaliser),
                has_entropy=algorithm.entropy_coefficient != 0,
                computes_all=self._trains_without_advantage,
                shadows=shadows,
                max_completion_length=max_completion_length,
            )
        self.optimizer = PolicyOptimizer(learning_parameters(model).values(), training)
        self._kept: list[MicroBatch] = []
        self._open = _OpenUpdate()
        self._metrics = self._no_metrics()

    @property
    def models(self) -> list[PreTrainedModel]:
        """All that it computes with: policy, reference and a critic's own."""
        parts = (self._policy, self._reference, None if self.critic is None else self.critic.backbone)
        return [part.model for part in parts if part is not None]

    def accumulate(self, micro_batch: MicroBatch) -> None:
        """Add a micro-batch's gradient sums, or keep it when the step makes several updates."""
        assert micro_batch.version == self.version, f"a micro-batch for version {micro_batch.version} at version {self.version}"
        if self._computes_in_step:
            self._kept.append(micro_batch)
        else:
            self._train_on(micro_batch, [(rows, _START_IS_PRESENT) for rows in self._passes(micro_batch)])

    def step(self) -> StepReport:
        """Make the step's optimizer updates, and raise the version by one."""
        if self._computes_in_step:
            self._update_by_minibatches()
        else:
            self._update(minibatch=0)
        self.version += 1
        metrics, self._metrics = self._metrics, self._no_metrics()
        return StepReport(
            version=self.version,
            skipped_updates=metrics.skipped_updates,
            num_samples=metrics.num_samples,
            num_loss_tokens=metrics.num_loss_tokens,
            metrics=metrics.report()
            | ({} if self.critic is None else self.critic.take_metrics())
            | ({} if self._comparison is None else self._comparison.take_metrics()),
        )

    def weights(self) -> Weights:
        """Parameters that learn (a tied one once) and, without an adapter, persistent buffers; by reference."""
        learning = {name: parameter.detach() for name, parameter in learning_parameters(self.model).items()}
        if has_adapter(self.model):
            return learning
        persistent = self.model.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in persistent}
        return learning | buffers

    def resume_at(self, version: int) -> None:
        """Continue counting from a version; gradients not yet used are dropped."""
        self.version = version
        self.optimizer.clear()
        if self.critic is not None:
            self.critic.abandon_step()
        if self._comparison is not None:
            self._comparison.clear()
        self._kept = []
        self._open = _OpenUpdate()
        self._metrics = self._no_metrics()

    def _no_metrics(self) -> StepMetrics:
        return StepMetrics(has_behaviour_weights=self._algorithm.weighs_tokens)

    def _update_by_minibatches(self) -> None:
        kept, self._kept = sorted(self._kept, key=lambda each: each.minibatch), []
        passes = [[(rows, self._step_start(rows)) for rows in self._passes(each)] for each in kept]
        for minibatch, members in groupby(zip(kept, passes, strict=True), key=lambda member: member[0].minibatch):
            of_update = list(members)
            trusted_distance = self._trusted_distance([each for _, its_passes in of_update for each in its_passes])
            if self._comparison is not None:
                self._comparison.look_ahead({micro_batch: [rows for rows, _ in its_passes] for micro_batch, its_passes in of_update})
            for micro_batch, its_passes in of_update:
                self._train_on(micro_batch, its_passes, trusted_distance=trusted_distance)
            self._update(minibatch=minibatch)

    def _train_on(
        self, micro_batch: MicroBatch, passes: Sequence[tuple[CollatedRows, _StepStart]], *, trusted_distance: float | None = None
    ) -> None:
        self._count(micro_batch)
        comparison = self._comparison if self._comparison is not None and self._comparison.is_due(micro_batch) else None
        for rows, start in passes:
            self._add_gradient(rows, start=start, trusted_distance=trusted_distance, comparison=comparison)
        if comparison is not None:
            comparison.compare_left_out(micro_batch)

    @property
    def _computes_in_step(self) -> bool:
        return self._algorithm.updates_in_step or (self._comparison is not None and self._comparison.needs_whole_update)

    def _passes(self, micro_batch: MicroBatch) -> list[CollatedRows]:
        return self._policy.passes(micro_batch.rows if self._trains_without_advantage else _with_advantage(micro_batch.rows))

    @property
    def _trains_without_advantage(self) -> bool:
        """KL, entropy and a critic's loss do not look at the advantage, and a user's surrogate need not."""
        others = self._algorithm.has_kl_loss or self._algorithm.entropy_coefficient != 0 or self.critic is not None
        return self._composition.learns_without_advantage or others

    def _count(self, micro_batch: MicroBatch) -> None:
        loss_tokens = sum(row.num_loss_tokens for row in micro_batch.rows)
        sequences = sum(len(row.samples) for row in micro_batch.rows)
        self._open.loss_tokens += loss_tokens
        self._open.sequences += sequences
        self._metrics.add_samples(num_samples=sequences, num_loss_tokens=loss_tokens)

    @torch.no_grad()
    def _step_start(self, rows: CollatedRows) -> _StepStart:
        """Before the first update changes the weights."""
        if not self._algorithm.updates_in_step:
            return _START_IS_PRESENT
        needs_logprobs = self._algorithm.proximal == "recompute" or isinstance(self._algorithm.surrogate, M2poSurrogate)
        if not needs_logprobs and self.critic is None:
            return _StepStart()
        hidden = self._policy.backbone.hidden_states(rows)
        return _StepStart(
            logprobs=self._policy.score_hidden(hidden, rows).logprobs if needs_logprobs else None,
            estimate=None if self.critic is None else self.critic.estimate(rows, self.critic.values(rows, hidden)),
        )

    def _trusted_distance(self, passes: Sequence[tuple[CollatedRows, _StepStart]]) -> float | None:
        """M2PO's bound, which is one for all tokens of the update that have an advantage, whatever else is computed beside them."""
        if not isinstance(self._algorithm.surrogate, M2poSurrogate) or not passes:
            return None
        distances = [
            log_ratios(start.logprobs, rows.behaviour_logprobs).square()[tokens_with_signal(_advantages(rows, start), rows)]
            for rows, start in passes
            if start.logprobs is not None
        ]
        return largest_trusted_distance(torch.cat(distances), threshold=self._algorithm.surrogate.threshold)

    def _add_gradient(
        self, rows: CollatedRows, *, start: _StepStart, trusted_distance: float | None, comparison: ShadowComparison | None
    ) -> None:
        hidden = self._policy.backbone.hidden_states(rows)
        scores = self._policy.score_hidden(hidden, rows)
        advantages = rows.advantages if self.critic is None else self.critic.learn(rows, hidden, start=start.estimate)
        result = objective(
            rows,
            scores,
            advantages=advantages,
            algorithm=self._algorithm,
            composition=self._composition,
            normaliser=self._normaliser,
            version=self.version,
            start_logprobs=start.logprobs,
            reference_logprobs=self._reference_logprobs(rows),
            trusted_distance=trusted_distance,
        )
        if comparison is None:
            result.loss_sum.backward()
        else:
            applied = AppliedPass(advantages=advantages, start_logprobs=start.logprobs, trusted_distance=trusted_distance)
            comparison.backward(result.loss_sum, rows, hidden, scores, applied, version=self.version)
        self._open.loss_sums.append(result.loss_sum.detach().double())
        self._metrics.add_pass(rows, result)

    @torch.no_grad()
    def _reference_logprobs(self, rows: CollatedRows) -> Tensor | None:
        if not self._algorithm.has_kl_loss:
            return None
        if self._reference is not None:
            return self._reference.score(rows).logprobs
        with adapter_off(self.model):
            return self._policy.score(rows).logprobs

    def _update(self, *, minibatch: int) -> None:
        update, self._open = self._open, _OpenUpdate()
        if update.loss_tokens == 0:
            return  # Without gradients, Adam's momentum and the weight decay would still move the weights.
        denominator = self._normaliser.denominator(BatchCounts(loss_tokens=update.loss_tokens, sequences=update.sequences))
        factor = self._learning_rate_factor(minibatch)
        learning_rate = self._training.learning_rate * factor
        loss_sum = float(torch.stack(update.loss_sums).sum()) if update.loss_sums else 0.0
        # A loss that is not finite can have a finite gradient, of everything but the spoiled tokens.
        grad_norm = self.optimizer.grad_norm(denominator=denominator) if math.isfinite(loss_sum) else math.nan
        critic_norm = 0.0 if self.critic is None else self.critic.grad_norm(denominator=denominator)
        if math.isfinite(grad_norm) and math.isfinite(critic_norm):
            self.optimizer.update(grad_norm=grad_norm, denominator=denominator, learning_rate=learning_rate)
            if self.critic is not None:
                self.critic.update(grad_norm=critic_norm, denominator=denominator, learning_rate_factor=factor)
        else:
            grad_norm = math.nan
            self.optimizer.clear()
            if self.critic is not None:
                self.critic.clear()
        self._metrics.add_update(loss_sum=loss_sum, denominator=denominator, grad_norm=grad_norm, learning_rate=learning_rate)

    def _learning_rate_factor(self, minibatch: int) -> float:
        updates_a_step = self._algorithm.num_minibatches
        return learning_rate_factor(
            self.version * updates_a_step + minibatch,
            total_updates=self._total_steps * updates_a_step,
            warmup_updates=self._training.warmup_steps * updates_a_step,
            course=self._training.lr_scheduler,
        )


def _advantages(rows: CollatedRows, start: _StepStart) -> Tensor:
    return rows.advantages if start.estimate is None else start.estimate.advantages


def _with_advantage(rows: Sequence[SharedPromptRow]) -> list[SharedPromptRow]:
    """The samples that change something; a group whose rewards are all equal has none."""
    return [replace(row, samples=tuple(sample for sample in row.samples if sample.advantages.any())) for row in rows]
