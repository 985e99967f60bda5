"""A Hugging Face causal model as the trainer needs it: scores of given tokens, in the layout that the model can take."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.errors import ModelError
from headrace.training.attention import install_attention
from headrace.training.bfloat16_layers import use_bfloat16_layers
from headrace.training.collation import CollatedRows, collate_in_sequence, collate_padded, fit_to_budget, one_sample_a_row
from headrace.training.gradients import CastWeight
from headrace.training.logprobs import OutputHead, TokenScores, score_tokens
from headrace.training.rotary import use_rotary_layers
from headrace.training.shared_prompt_attention import find_sequences
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
        self._backbone: nn.Module = model.base_model
        self._temperature = temperature
        self._autocast_dtype = autocast_dtype
        self._token_budget = token_budget
        self._cast_head = CastWeight(self._head.weight, self.compute_dtype)
        switch_off_dropout(model)
        _check_head(model, self._head)
        self._shares_prompts = install_attention(model)
        if autocast_dtype is torch.bfloat16 and model.device.type == "cpu":
            use_bfloat16_layers(model)
            use_rotary_layers(model)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of matrix products and attention."""
        return self._autocast_dtype or self.model.dtype

    def passes(self, rows: Sequence[SharedPromptRow]) -> list[CollatedRows]:
        """The forward passes that a micro-batch takes: one when prompts can be shared, none without samples."""
        rows = [row for row in rows if row.samples]
        if not rows:
            return []
        if self._shares_prompts:
            return [collate_in_sequence(rows, self.model.device)]
        return [collate_padded(part, self.model.device) for part in fit_to_budget(one_sample_a_row(rows), self._token_budget)]

    def score(self, rows: CollatedRows) -> TokenScores:
        """Log-probability and entropy of every loss token."""
        hidden = self._hidden_states(rows)
        return score_tokens(
            hidden.flatten(0, 1)[rows.scored_positions],
            self._head,
            position_of_token=rows.position_of_token,
            token_ids=rows.token_ids,
            temperature=self._temperature,
            cast_weight=self._cast_head,
        )

    def _hidden_states(self, rows: CollatedRows) -> Tensor:
        device_type = self.model.device.type
        with torch.autocast(device_type, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None):
            if rows.layouts is None:
                # Padding on the right is never seen by a causal model, and without a mask attention is faster.
                output = self._backbone(input_ids=rows.input_ids, use_cache=False)
            else:
                output = self._backbone(
                    input_ids=rows.input_ids,
                    position_ids=rows.position_ids,
                    # Of the shape that models take as it is: who sees whom is in the sequences.
                    attention_mask=torch.empty(1, 1, 1, 1, device=self.model.device),
                    sequences=find_sequences(rows.layouts, self.model.device),
                    use_cache=False,
                )
        return output.last_hidden_state


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


def switch_off_dropout(model: PreTrainedModel) -> None:
    """Make every dropout probability 0, whatever mode the model is put in later."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 (a module's attribute, unknown to the type checker)
    model.eval()


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
