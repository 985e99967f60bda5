"""The loss of a critic, and how well its values foresee what comes."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor


class ValueLosses(NamedTuple):
    """What a value loss returns, each [tokens]."""

    losses: Tensor
    clipped: Tensor
    """The value has moved so far from the old one, and for the better, that nothing pulls at it any more."""


def clipped_value_losses(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> ValueLosses:
    """0.5 · max((V - R)², (clip(V, V_old - clip, V_old + clip) - R)²).

    Source: PPO2 of OpenAI's baselines; verl has the same. While V is near V_old it is 0.5 · (V - R)², in value and gradient.

    Args:
        values: V, with gradient [tokens].
        old_values: V_old, that the returns were made with [tokens].
        returns: R, without gradient [tokens].
        clip: Largest change that is rewarded, above 0.
    """
    change = values - old_values
    errors, near_errors = (values - returns).square(), (old_values + change.clamp(-clip, clip) - returns).square()
    return ValueLosses(losses=0.5 * torch.maximum(errors, near_errors), clipped=(near_errors > errors) & (change.abs() > clip))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueTotals:
    """Sums over tokens, float64 scalars that add up over micro-batches."""

    tokens: Tensor
    clipped: Tensor
    value: Tensor
    """Of the values that the advantages were made with."""
    returns: Tensor
    returns_squared: Tensor
    error: Tensor
    """Of R - V."""
    error_squared: Tensor

    def __add__(self, other: "ValueTotals") -> "ValueTotals":
        return ValueTotals(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    def metrics(self) -> dict[str, float]:
        """Means over the tokens, and the explained variance 1 - Var(R - V) / Var(R), which is absent when all returns are equal."""
        total = {field.name: float(getattr(self, field.name)) / float(self.tokens) for field in fields(self)}
        means = {"value_clip_ratio": total["clipped"], "values/mean": total["value"], "returns/mean": total["returns"]}
        variance = total["returns_squared"] - total["returns"] ** 2
        if variance <= 1e-12 * total["returns_squared"]:
            return means
        return means | {"explained_variance": 1 - (total["error_squared"] - total["error"] ** 2) / variance}


def measure_values(*, old_values: Tensor, returns: Tensor, clipped: Tensor) -> ValueTotals:
    """The totals of one micro-batch, each argument [tokens]."""
    errors = (returns - old_values).double()
    return ValueTotals(
        tokens=torch.ones_like(errors).sum(),
        clipped=clipped.sum(dtype=torch.float64),
        value=old_values.sum(dtype=torch.float64),
        returns=returns.sum(dtype=torch.float64),
        returns_squared=returns.double().square().sum(),
        error=errors.sum(),
        error_squared=errors.square().sum(),
    )
