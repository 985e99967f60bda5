"""The training step itself: gradients of micro-batches, and the optimizer updates made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.algorithms.normalisers import BatchCounts
from headrace.config.training import AlgorithmSection, BehaviourProximal, RecomputeProximal, TrainingSection
from headrace.errors import ModelError
from headrace.interfaces import Weights
from headrace.training.collation import CollatedRows
from headrace.training.learning_rate import learning_rate_factor
from headrace.training.objective import normaliser_of, objective
from headrace.training.optimizer import PolicyOptimizer
from headrace.training.policy_model import PolicyModel
from headrace.training.step_metrics import StepMetrics
from headrace.types import MicroBatch, SharedPromptRow, StepReport


@dataclass(slots=True, kw_only=True, eq=False)
class _OpenUpdate:
    """What has been accumulated for the next optimizer update, beside the gradients."""

    loss_sums: list[Tensor] = field(default_factory=list[Tensor])
    loss_tokens: int = 0
    sequences: int = 0


class PolicyTrainer:
    """Trains a model step by step, in the thread that calls it.

    With one minibatch, `accumulate` computes at once, so that training can stream; with several, micro-batches are kept and
    computed in `step`. Gradients are summed in float32 and divided once, so their order of arrival does not matter. Samples whose
    gradient is exactly zero are counted, but not computed.

    Args:
        model: The policy, with float32 weights that this trainer changes in place.
        algorithm: What is learned from a batch.
        training: The optimizer.
        temperature: Softmax temperature that samples are drawn with.
        max_completion_length: Tokens; the constant of `algorithm.denominator = "constant"`.
        total_steps: Training steps of the whole run, for the learning rate's course.
        autocast_dtype: Arithmetic of the forward pass; None is float32.
        reference: The frozen initial policy; needed when `algorithm.beta` is above 0.

    Raises:
        ModelError: The model cannot be trained here.
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
    ) -> None:
        assert (reference is not None) or algorithm.beta == 0, "beta above 0 needs a reference model"
        self.version = 0
        self.model = model
        self._algorithm = algorithm
        self._training = training
        self._total_steps = total_steps
        self._normaliser = normaliser_of(algorithm, max_completion_length)
        self._policy = PolicyModel(model, temperature=temperature, autocast_dtype=autocast_dtype, token_budget=training.token_budget)
        self._reference = None
        if reference is not None and algorithm.beta > 0:
            self._reference = PolicyModel(
                reference, temperature=temperature, autocast_dtype=autocast_dtype, token_budget=training.token_budget
            )
        if training.gradient_checkpointing:
            _recompute_activations(model)
        self.optimizer = PolicyOptimizer(model.parameters(), training)
        self._kept: list[MicroBatch] = []
        self._open = _OpenUpdate()
        self._metrics = self._no_metrics()

    def accumulate(self, micro_batch: MicroBatch) -> None:
        """Add a micro-batch's gradient sums, or keep it when the step makes several updates."""
        assert micro_batch.version == self.version, f"a micro-batch for version {micro_batch.version} at version {self.version}"
        if self._algorithm.num_minibatches > 1:
            self._kept.append(micro_batch)
            return
        self._count(micro_batch)
        for rows in self._passes(micro_batch):
            self._add_gradient(rows, proximal_logprobs=None)

    def step(self) -> StepReport:
        """Make the step's optimizer updates, and raise the version by one."""
        if self._algorithm.num_minibatches > 1:
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
            metrics=metrics.report(),
        )

    def weights(self) -> Weights:
        """Parameters (a tied one once) and persistent buffers, by reference."""
        persistent = self.model.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in persistent}
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()} | buffers

    def resume_at(self, version: int) -> None:
        """Continue counting from a version; gradients not yet used are dropped."""
        self.version = version
        self.optimizer.clear()
        self._kept = []
        self._open = _OpenUpdate()
        self._metrics = self._no_metrics()

    def _no_metrics(self) -> StepMetrics:
        return StepMetrics(has_behaviour_weights=not isinstance(self._algorithm.proximal, BehaviourProximal))

    def _update_by_minibatches(self) -> None:
        kept, self._kept = sorted(self._kept, key=lambda each: each.minibatch), []
        passes = [self._passes(each) for each in kept]
        anchors = [self._proximal_logprobs(each) for each in passes]
        for minibatch, members in groupby(zip(kept, passes, anchors, strict=True), key=lambda member: member[0].minibatch):
            for micro_batch, its_passes, its_anchors in members:
                self._count(micro_batch)
                for rows, anchor in zip(its_passes, its_anchors, strict=True):
                    self._add_gradient(rows, proximal_logprobs=anchor)
            self._update(minibatch=minibatch)

    def _passes(self, micro_batch: MicroBatch) -> list[CollatedRows]:
        return self._policy.passes(micro_batch.rows if self._trains_without_advantage else _with_advantage(micro_batch.rows))

    @property
    def _trains_without_advantage(self) -> bool:
        """The surrogates are products with the advantage, whatever the ratio is; KL and entropy are not."""
        return self._algorithm.beta > 0 or self._algorithm.entropy_coefficient != 0

    def _count(self, micro_batch: MicroBatch) -> None:
        loss_tokens = sum(row.num_loss_tokens for row in micro_batch.rows)
        sequences = sum(len(row.samples) for row in micro_batch.rows)
        self._open.loss_tokens += loss_tokens
        self._open.sequences += sequences
        self._metrics.add_samples(num_samples=sequences, num_loss_tokens=loss_tokens)

    @torch.no_grad()
    def _proximal_logprobs(self, passes: Sequence[CollatedRows]) -> list[Tensor | None]:
        """Of the weights that the step starts from, before the first update changes them."""
        if not isinstance(self._algorithm.proximal, RecomputeProximal):
            return [None] * len(passes)
        return [self._policy.score(rows).logprobs for rows in passes]

    def _add_gradient(self, rows: CollatedRows, proximal_logprobs: Tensor | None) -> None:
        result = objective(
            rows,
            self._policy.score(rows),
            algorithm=self._algorithm,
            normaliser=self._normaliser,
            version=self.version,
            proximal_logprobs=proximal_logprobs,
            reference_logprobs=self._reference_logprobs(rows),
        )
        result.loss_sum.backward()
        self._open.loss_sums.append(result.loss_sum.detach().double())
        self._metrics.add_pass(rows, result)

    @torch.no_grad()
    def _reference_logprobs(self, rows: CollatedRows) -> Tensor | None:
        return None if self._reference is None else self._reference.score(rows).logprobs

    def _update(self, *, minibatch: int) -> None:
        update, self._open = self._open, _OpenUpdate()
        if update.loss_tokens == 0:
            return  # Without gradients, Adam's momentum and the weight decay would still move the weights.
        denominator = self._normaliser.denominator(BatchCounts(loss_tokens=update.loss_tokens, sequences=update.sequences))
        learning_rate = self._learning_rate(minibatch)
        loss_sum = float(torch.stack(update.loss_sums).sum()) if update.loss_sums else 0.0
        if math.isfinite(loss_sum):
            grad_norm = self.optimizer.update(denominator=denominator, learning_rate=learning_rate)
        else:
            # A loss that is not finite can have a finite gradient, of everything but the spoiled tokens.
            grad_norm = math.nan
            self.optimizer.clear()
        self._metrics.add_update(loss_sum=loss_sum, denominator=denominator, grad_norm=grad_norm, learning_rate=learning_rate)

    def _learning_rate(self, minibatch: int) -> float:
        updates_a_step = self._algorithm.num_minibatches
        factor = learning_rate_factor(
            self.version * updates_a_step + minibatch,
            total_updates=self._total_steps * updates_a_step,
            warmup_updates=self._training.warmup_steps * updates_a_step,
            course=self._training.lr_scheduler,
        )
        return self._training.learning_rate * factor


def _with_advantage(rows: Sequence[SharedPromptRow]) -> list[SharedPromptRow]:
    """The samples that change something; a group whose rewards are all equal has none."""
    return [replace(row, samples=tuple(sample for sample in row.samples if sample.advantage != 0)) for row in rows]


def _recompute_activations(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{model.config.model_type} cannot recompute its activations in the backward pass; set training.gradient_checkpointing = false"
        )
    model.activation_checkpointing_enable()
    # Layers recompute in training mode alone; dropout is off in either mode.
    model.train()
