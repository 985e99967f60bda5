"""What a step's tokens went through, as sums that add up over micro-batches and ranks.

Means of means are wrong when micro-batches differ in size, so a micro-batch reports sums and counts (`measure`), the
caller adds them with `+`, and `metrics` divides once.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from headrace.algorithms.kl import k3
from headrace.algorithms.losses import LossTokens, PolicyLoss
from headrace.algorithms.ratios import masked, ratios


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTotals:
    """Sums over loss tokens, float64 scalars on the device of the tokens: `+` waits for nothing."""

    tokens: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    beyond_cap: Tensor
    """Tokens left out: by the correction, or because they are not trusted."""
    behaviour_weight: Tensor
    """Of π_prox / π_behave as applied, 0 where left out by the correction."""
    importance: Tensor
    """Of w = π_θ / π_behave, before any cap."""
    importance_squared: Tensor
    mismatch: Tensor
    """Of k3 between engine and trainer, over `mismatch_tokens`."""
    mismatch_tokens: Tensor
    """Tokens that the trainer's own version sampled."""

    def __add__(self, other: "TokenTotals") -> "TokenTotals":
        return TokenTotals(**{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)})

    def metrics(self) -> dict[str, float]:
        """Means over all loss tokens, under the names that users of the field know.

        `mismatch_kl` is absent when no token is of the trainer's own version; everything is when there are no tokens.
        `ess` is the effective sample size as a share of the tokens, (Σw)² / (n · Σw²): 1 when all w are equal (Kish).
        """
        total = {field.name: float(getattr(self, field.name)) for field in fields(self)}
        count = total["tokens"]
        if not count:
            return {}
        own = total["mismatch_tokens"]
        mismatch = {"mismatch_kl": total["mismatch"] / own} if own else {}
        return mismatch | {
            "clip_ratio/low_mean": total["clipped_low"] / count,
            "clip_ratio/high_mean": total["clipped_high"] / count,
            "clip_ratio/region_mean": (total["clipped_low"] + total["clipped_high"]) / count,
            "behaviour_weight/mean": total["behaviour_weight"] / count,
            "behaviour_weight/beyond_cap": total["beyond_cap"] / count,
            "ess": total["importance"] ** 2 / (count * total["importance_squared"]),
        }


def measure(tokens: LossTokens, loss: PolicyLoss, *, staleness: Tensor) -> TokenTotals:
    """The totals of one micro-batch.

    The mismatch is meant for log-probabilities of the weights that the step starts from: these sampled the tokens of
    staleness 0, so engine and trainer should agree within the dtype's tolerance. After an update within the step they need not.

    Args:
        tokens: What the loss was computed from.
        loss: What it returned.
        staleness: Trainer version minus the token's version [tokens].
    """
    mask = tokens.mask
    logprobs, behaviour_logprobs = masked(tokens.logprobs.detach(), mask), masked(tokens.behaviour_logprobs, mask)
    importance = masked(ratios(logprobs, behaviour_logprobs), mask).double()
    own_version = mask & (staleness == 0)
    return TokenTotals(
        tokens=_sum(mask),
        clipped_low=_sum(loss.clipped_low),
        clipped_high=_sum(loss.clipped_high),
        beyond_cap=_sum(mask & ~loss.kept),
        behaviour_weight=_sum(masked(loss.behaviour_weights, mask)),
        importance=_sum(importance),
        importance_squared=_sum(importance.square()),
        mismatch=_sum(masked(k3(behaviour_logprobs, logprobs), own_version)),
        mismatch_tokens=_sum(own_version),
    )


def _sum(values: Tensor) -> Tensor:
    return values.sum(dtype=torch.float64)
