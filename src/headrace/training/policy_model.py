"""A Hugging Face causal model as the trainer needs it: scores of given tokens, in the layout that the model can take."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.errors import ModelError
from headrace.training.backbone import Backbone
from headrace.training.collation import CollatedRows
from headrace.training.gradients import CastWeight
from headrace.training.logprobs import OutputHead, TokenScores, logprob_gradients, score_tokens
from headrace.types import SharedPromptRow


class PolicyModel:
    """Scores samples with a model, without dropout, so that the same weights give the same numbers as the engine's.

    Args:
        model: A causal language model; its weights are used by reference.
        temperature: Softmax temperature that the samples were drawn with.
        autocast_dtype: Arithmetic of the forward pass; None computes in the weights' own dtype.
        token_budget: Most tokens of one pass, padding included, for models that cannot share prompts.

    Raises:
        ModelError: The model makes logits from hidden states in a way that is not known here.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, autocast_dtype: torch.dtype | None, token_budget: int) -> None:
        self.model = model
        self._head = output_head(model)
        self._temperature = temperature
        self._autocast_dtype = autocast_dtype
        self._cast_head = CastWeight(self._head.weight, self.compute_dtype)
        _check_head(model.eval(), self._head)
        self.backbone = Backbone(model, autocast_dtype=autocast_dtype, token_budget=token_budget)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of matrix products and attention."""
        return self._autocast_dtype or self.model.dtype

    def passes(self, rows: Sequence[SharedPromptRow]) -> list[CollatedRows]:
        """The forward passes that a micro-batch takes: one when prompts can be shared, none without samples."""
        return self.backbone.passes(rows)

    def score(self, rows: CollatedRows) -> TokenScores:
        """Log-probability and entropy of every loss token."""
        return self.score_hidden(self.backbone.hidden_states(rows), rows)

    def score_hidden(self, hidden: Tensor, rows: CollatedRows) -> TokenScores:
        """The same from the backbone's hidden states of these rows, for which something else has a use, too."""
        return score_tokens(
            hidden,
            self._head,
            position_of_token=rows.position_of_token,
            token_ids=rows.token_ids,
            temperature=self._temperature,
            cast_weight=self._cast_head,
        )

    def logprob_gradients(self, hidden: Tensor, rows: CollatedRows, tokens: Tensor) -> Tensor:
        """∂ log π / ∂ hidden state of some of the rows' tokens, given by number, each at its own position [tokens, hidden] float32."""
        positions, position_of_token = rows.position_of_token[tokens].unique(return_inverse=True)
        return logprob_gradients(
            hidden.detach()[positions],
            self._head,
            position_of_token=position_of_token,
            token_ids=rows.token_ids[tokens],
            temperature=self._temperature,
            cast_weight=self._cast_head,
        )


def output_head(model: PreTrainedModel) -> OutputHead:
    """The model's output layer, with the scaling that some architectures put behind it."""
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"{model.config.model_type} has an output layer of type {type(layer).__name__}, not a linear one, so token "
            "log-probabilities cannot be computed in chunks; choose a causal language model with a linear output layer"
        )
    config = model.config
    return OutputHead(
        weight=layer.weight,
        bias=layer.bias,
        scale=getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


@torch.no_grad()
def _check_head(model: PreTrainedModel, head: OutputHead) -> None:
    input_ids = torch.tensor([[1, 0]], device=model.device)
    expected = model(input_ids=input_ids, use_cache=False).logits.float().log_softmax(-1)
    hidden: Tensor = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    scores = score_tokens(
        hidden[0],
        head,
        position_of_token=torch.arange(2, device=model.device),
        token_ids=input_ids[0],
        temperature=1.0,
        cast_weight=CastWeight(head.weight, model.dtype),
    )
    gap = float((scores.logprobs - expected[0, torch.arange(2), input_ids[0]]).abs().max())
    if not gap < 1e-2:
        raise ModelError(
            f"log-probabilities of {model.config.model_type} computed from its hidden states are {gap:.3g} off the model's own, so it "
            "must change its logits in a way that is not known here; choose another architecture"
        )
