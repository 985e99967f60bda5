"""What algorithms made of the same tokens, as sums over passes, and the metrics that they give."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.algorithms.losses import LossTokens, PolicyLoss
from headrace.algorithms.ratios import masked
from headrace.config.shadow import APPLIED

Products = Mapping[tuple[tuple[str, int], tuple[str, int]], float]
"""Scalar product of every two gradients, each by (algorithm, staleness of the tokens that it comes from)."""


def token_sums(tokens: LossTokens, loss: PolicyLoss, slopes: Tensor) -> Tensor:
    """Numbers of each token to add up [tokens, 5] float64: is there, is kept, is clipped, and w and w² of its weight.

    Its weight w = |∂ loss / ∂ log π| / (|A| · token weight of the normaliser) is what stands before A · ∇ log π in the end: ratio and
    behaviour weight as bounded, 0 where a clip or a mask takes the token out, 1 for all tokens on policy.

    Args:
        tokens: A pass, its mask on for all tokens that count.
        loss: What an algorithm makes of it.
        slopes: Its ∂ loss / ∂ log π [tokens].
    """
    scale = (tokens.advantages * tokens.weights).abs().double()
    weights = masked(slopes.abs().double() / scale, tokens.mask & (scale > 0))
    columns = (tokens.mask, loss.kept, loss.clipped_low | loss.clipped_high, weights, weights.square())
    return torch.stack([masked(column.double(), tokens.mask) for column in columns], dim=1)


class ShadowMetrics:
    """Sums of a step, by algorithm and staleness."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], Tensor] = {}

    def add(self, label: str, staleness: int, sums: Tensor) -> None:
        """Add what `token_sums` gives, summed over some tokens [5]."""
        key = label, staleness
        self._sums[key] = self._sums[key] + sums if key in self._sums else sums

    def report(self, products: Products) -> dict[str, float]:
        """Metrics `shadow/<algorithm>/…`: `kept`, `ess`, `clip_ratio` and `gradient_cosine` with the applied algorithm.

        Of all tokens, and with `/staleness_<d>` behind the name of those of one staleness, when there are several. `ess` is the effective
        sample size as a share of the tokens, (Σw)² / (n · Σw²). A value that is not defined is left out.
        """
        sums = {key: total.tolist() for key, total in self._sums.items()}
        stalenesses = sorted({staleness for _, staleness in sums})
        parts: dict[str, list[int]] = {"": stalenesses}
        if len(stalenesses) > 1:
            parts |= {f"/staleness_{staleness}": [staleness] for staleness in stalenesses}
        metrics: dict[str, float] = {}
        for label in dict.fromkeys(label for label, _ in sums):
            for suffix, part in parts.items():
                values = _shares([sums[label, each] for each in part if (label, each) in sums])
                values["gradient_cosine"] = _cosine(products, label, part)
                metrics |= {f"shadow/{label}/{name}{suffix}": value for name, value in values.items() if math.isfinite(value)}
        return metrics


def _shares(sums: list[list[float]]) -> dict[str, float]:
    count, kept, clipped, weight, squared = (sum(column) for column in zip(*sums, strict=True)) if sums else [0.0] * 5
    if not count:
        return {}
    ess = weight * weight / (count * squared) if squared else 0.0
    return {"kept": kept / count, "ess": ess, "clip_ratio": clipped / count}


def _cosine(products: Products, label: str, stalenesses: list[int]) -> float:
    """Of the parts of two gradients; NaN where one of them is zero."""

    def product(one: str, other: str) -> float:
        return sum(products.get(((one, first), (other, second)), 0.0) for first in stalenesses for second in stalenesses)

    scale = math.sqrt(max(product(label, label) * product(APPLIED, APPLIED), 0.0))
    return product(label, APPLIED) / scale if scale else math.nan
