"""A policy that does not learn: log-probabilities of what another one sampled."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from headrace.batching.packing import split_row
from headrace.errors import ModelError
from headrace.interfaces import Weights
from headrace.training.adapter import cast_frozen_linears
from headrace.training.policy_model import PolicyModel
from headrace.types import Floats, Rollout, Sample, SharedPromptRow


class FrozenPolicy:
    """Scores the rollouts of a group, in the thread that calls it: their prompt is computed once where the model can share it.

    Linear layers are kept in the type that they are multiplied in, and in no other.

    Args:
        model: Changed in place: frozen and cast.
        temperature: Softmax temperature that the rollouts were drawn with; these log-probabilities are of the same one.
        autocast_dtype: Arithmetic of the forward pass; None computes in the weights' own dtype.
        token_budget: Most tokens of one pass.

    Raises:
        ModelError: The model cannot be computed with here.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, autocast_dtype: torch.dtype | None, token_budget: int) -> None:
        self.model = model.requires_grad_(False)
        self._policy = PolicyModel(model, temperature=temperature, autocast_dtype=autocast_dtype, token_budget=token_budget)
        self._token_budget = token_budget
        if autocast_dtype is not None:
            cast_frozen_linears(model, autocast_dtype)

    @torch.no_grad()
    def logprobs(self, prompt_ids: Sequence[int], rollouts: Sequence[Rollout]) -> tuple[Floats, ...]:
        """Of the sampled tokens of each rollout, [its tokens] float32.

        Raises:
            ModelError: They are not finite.
        """
        samples = tuple(_sample(rollout) for rollout in rollouts)
        row = SharedPromptRow(group_id=0, prompt_ids=tuple(prompt_ids), samples=samples)
        found: dict[int, Floats] = {}
        for part in split_row(row, token_budget=self._token_budget):
            for rows in self._policy.passes([part]):
                lengths = [len(sample.completion_ids) for sample in rows.samples]
                of_samples = self._policy.score(rows).logprobs.cpu().split(lengths)
                found |= {id(sample): logprobs.numpy() for sample, logprobs in zip(rows.samples, of_samples, strict=True)}
        if not all(np.isfinite(logprobs).all() for logprobs in found.values()):
            raise ModelError(
                f"the frozen model {self.model.name_or_path!r} (teacher or reference) gives log-probabilities that are not finite, which "
                f"would spoil every weight that learns from them; it is damaged, or overflows in {self._policy.compute_dtype}: look at its "
                "weights, or set training.autocast to 'none'"
            )
        return tuple(found[id(sample)] for sample in samples)

    @torch.no_grad()
    def copy_weights(self, weights: Weights) -> None:
        """Take over parameters and buffers, by their names."""
        tensors = self.tensors(weights.keys())
        for name, weight in weights.items():
            tensors[name].copy_(weight)

    def tensors(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Parameters and buffers of these names, by reference."""
        found = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return {name: found[name].detach() for name in names}


def _sample(rollout: Rollout) -> Sample:
    return Sample(
        completion_ids=rollout.completion_ids,
        logprobs=rollout.logprobs,
        versions=rollout.versions,
        advantages=np.zeros(len(rollout.completion_ids), np.float32),
    )
