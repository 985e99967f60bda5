"""The critic of PPO: a value for the state that each token is sampled in, and what becomes of a policy's rewards with it.

rewards of tokens, values ──▶ advantages (GAE) ──▶ the policy's loss
                                   │
                                   └── returns = advantages + values ──▶ the critic's loss
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.algorithms.normalisers import Normaliser
from headrace.algorithms.token_advantages import generalized_advantages
from headrace.algorithms.values import ValueTotals, clipped_value_losses, measure_values
from headrace.config.algorithm import AlgorithmSection, GaeAdvantage
from headrace.config.training import TrainingSection
from headrace.errors import ModelError
from headrace.training.backbone import Backbone, recompute_activations
from headrace.training.collation import CollatedRows
from headrace.training.optimizer import PolicyOptimizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueEstimate:
    """What a critic makes of a pass's rewards: without gradient, each [tokens]."""

    values: Tensor
    """Of the state that each token was sampled in."""
    advantages: Tensor
    """Not whitened: that would need the whole batch, and a batch in pieces would give another result."""

    @property
    def returns(self) -> Tensor:
        """What the values should have been."""
        return self.advantages + self.values


class Critic:
    """Values, their learning, and the advantages made with them.

    Values are linear in final hidden states: the policy's, which learn nothing from it, or those of a backbone that learns with the
    head. The head starts at zero. Gradients are summed and divided as the policy's are, by the same weights and denominator.

    Args:
        policy: Whose hidden states, or layout of passes, it takes.
        backbone: A causal language model of its own for the same tokens; None for a head on the policy.
        algorithm: Has a critic, and advantages of type 'gae'.
        training: The optimizer, but for the learning rate.
        normaliser: Weighs the tokens.
        autocast_dtype: Arithmetic of the own backbone; None is float32.

    Raises:
        ModelError: The backbone cannot take the policy's passes.
    """

    def __init__(
        self,
        policy: Backbone,
        *,
        backbone: PreTrainedModel | None,
        algorithm: AlgorithmSection,
        training: TrainingSection,
        normaliser: Normaliser,
        autocast_dtype: torch.dtype | None,
    ) -> None:
        assert algorithm.critic is not None, "a critic without its section"
        assert isinstance(algorithm.advantage, GaeAdvantage), algorithm.advantage
        self._section, self._gae = algorithm.critic, algorithm.advantage
        self._normaliser = normaliser
        self.backbone = None if backbone is None else _own_backbone(backbone, policy, training, autocast_dtype)
        self._head = _value_head(policy.model if backbone is None else backbone)
        self._optimizer = PolicyOptimizer((parameter for _, parameter in self._named_parameters()), training)
        self._open_loss_sums: list[Tensor] = []
        self._metrics = _CriticMetrics()

    def values(self, rows: CollatedRows, policy_hidden: Tensor) -> Tensor:
        """Of the state that each token was sampled in [tokens] float32, with a gradient that ends before the policy.

        Args:
            rows: The pass.
            policy_hidden: The policy's hidden states [positions, hidden].
        """
        hidden = policy_hidden.detach() if self.backbone is None else self.backbone.hidden_states(rows)
        return self._head(hidden.float())[rows.position_of_token, 0]

    def estimate(self, rows: CollatedRows, values: Tensor) -> ValueEstimate:
        """Advantages from the rewards that the rows have at their tokens, and the values [tokens]."""
        rewards, detached = rows.advantages.cpu().numpy(), values.detach().cpu().numpy()
        ends = np.cumsum(torch.bincount(rows.sample_index, minlength=rows.num_samples).cpu().numpy())[:-1]
        advantages = [
            generalized_advantages(of_rewards, of_values, gamma=self._gae.gamma, lam=self._gae.lam)
            for of_rewards, of_values in zip(np.split(rewards, ends), np.split(detached, ends), strict=True)
        ]
        return ValueEstimate(values=values.detach(), advantages=torch.from_numpy(np.concatenate(advantages)).to(values.device))

    def learn(self, rows: CollatedRows, policy_hidden: Tensor, *, start: ValueEstimate | None) -> Tensor:
        """Add the gradient of a pass's value loss.

        Args:
            rows: The pass.
            policy_hidden: The policy's hidden states [positions, hidden].
            start: Of the weights that the step started from; None when these are the present ones.

        Returns:
            The advantages to train the policy on [tokens].
        """
        values = self.values(rows, policy_hidden)
        old = self.estimate(rows, values) if start is None else start
        weights = self._normaliser.token_weights(rows.sample_index, torch.ones_like(rows.sample_index, dtype=torch.bool))
        losses, clipped = clipped_value_losses(values, old.values, old.returns, clip=self._section.value_clip)
        loss_sum = (weights * losses).sum()
        loss_sum.backward()
        self._open_loss_sums.append(loss_sum.detach().double())
        self._metrics.add_pass(measure_values(old_values=old.values, returns=old.returns, clipped=clipped))
        return old.advantages

    def grad_norm(self, *, denominator: float) -> float:
        """Norm of the gradient of the passes since the last update, divided; NaN when their loss is not finite."""
        return self._optimizer.grad_norm(denominator=denominator) if math.isfinite(self._open_loss_sum) else math.nan

    def update(self, *, grad_norm: float, denominator: float, learning_rate_factor: float) -> None:
        """Make one optimizer update from the gradients' sums, of this norm."""
        learning_rate = self._section.peak_learning_rate * learning_rate_factor
        self._optimizer.update(grad_norm=grad_norm, denominator=denominator, learning_rate=learning_rate)
        self._metrics.add_update(loss_sum=self._open_loss_sum, denominator=denominator, grad_norm=grad_norm)
        self._open_loss_sums = []

    @property
    def _open_loss_sum(self) -> float:
        return float(torch.stack(self._open_loss_sums).sum()) if self._open_loss_sums else 0.0

    def clear(self) -> None:
        """Drop the gradients."""
        self._optimizer.clear()
        self._open_loss_sums = []

    def abandon_step(self) -> None:
        """Drop what the step under way has brought so far."""
        self.clear()
        self._metrics = _CriticMetrics()

    def take_metrics(self) -> dict[str, float]:
        """Of the step that has ended; the next one starts."""
        metrics, self._metrics = self._metrics, _CriticMetrics()
        return metrics.report()

    def shapes(self) -> dict[str, list[int]]:
        """Of all parameters, by name."""
        return {name: list(parameter.shape) for name, parameter in self._named_parameters()}

    def state(self) -> dict[str, Any]:
        """Parameters and optimizer, to be given to `load_state`."""
        parameters = {name: parameter.detach() for name, parameter in self._named_parameters()}
        return {"parameters": parameters, "optimizer": self._optimizer.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of a critic with the same shapes.

        Raises:
            KeyError, ValueError: It lacks something.
        """
        saved = {name: state["parameters"][name] for name, _ in self._named_parameters()}
        self._optimizer.load_state(state["optimizer"])
        with torch.no_grad():
            for name, parameter in self._named_parameters():
                parameter.copy_(saved[name])

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._head.named_parameters(prefix="head")
        if self.backbone is not None:
            yield from self.backbone.model.named_parameters(prefix="backbone")


class _CriticMetrics:
    """Sums over the passes and updates of a step."""

    def __init__(self) -> None:
        self._totals: ValueTotals | None = None
        self._loss_sum = 0.0
        self._denominators = 0.0
        self._grad_norms: list[float] = []

    def add_pass(self, totals: ValueTotals) -> None:
        self._totals = totals if self._totals is None else self._totals + totals

    def add_update(self, *, loss_sum: float, denominator: float, grad_norm: float) -> None:
        self._loss_sum += loss_sum
        self._denominators += denominator
        self._grad_norms.append(grad_norm)

    def report(self) -> dict[str, float]:
        values = {} if self._totals is None else self._totals.metrics()
        if self._grad_norms:
            values["value_loss"] = self._loss_sum / self._denominators
            values["critic/grad_norm"] = sum(self._grad_norms) / len(self._grad_norms)
        return {name: value for name, value in values.items() if math.isfinite(value)}


def _own_backbone(model: PreTrainedModel, policy: Backbone, training: TrainingSection, autocast_dtype: torch.dtype | None) -> Backbone:
    backbone = Backbone(model, autocast_dtype=autocast_dtype, token_budget=training.token_budget)
    if backbone.shares_prompts != policy.shares_prompts:
        raise ModelError(
            f"the critic ({model.config.model_type}) and the policy ({policy.model.config.model_type}) take prompts in different layouts: "
            "only one of them can compute several completions behind one prompt; set algorithm.critic.name_or_path to a model of the "
            "policy's architecture, or leave it out for a value head on the policy"
        )
    if training.gradient_checkpointing:
        recompute_activations(model)
    return backbone


def _value_head(model: PreTrainedModel) -> nn.Linear:
    head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=model.device)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head
