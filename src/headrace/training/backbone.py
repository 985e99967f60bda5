"""A Hugging Face causal model without its output layer: final hidden states of a micro-batch, in the layout that the model can take."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.errors import ModelError
from headrace.training.adapter import cast_frozen_linears, has_adapter
from headrace.training.attention import install_attention
from headrace.training.bfloat16_layers import use_bfloat16_layers
from headrace.training.collation import CollatedRows, collate_in_sequence, collate_padded, fit_to_budget, one_sample_a_row
from headrace.training.rotary import use_rotary_layers
from headrace.training.shared_prompt_attention import find_sequences
from headrace.types import SharedPromptRow


class Backbone:
    """Computes hidden states, without dropout, so that the same weights give the same numbers as the engine's.

    Args:
        model: A causal language model, with or without its output layer; its weights are used by reference.
        autocast_dtype: Arithmetic of the forward pass; None computes in the weights' own dtype.
        token_budget: Most tokens of one pass, padding included, for models that cannot share prompts.
    """

    def __init__(self, model: PreTrainedModel, *, autocast_dtype: torch.dtype | None, token_budget: int) -> None:
        self.model = model
        self._body: nn.Module = model.base_model
        self._autocast_dtype = autocast_dtype
        self._token_budget = token_budget
        switch_off_dropout(model)
        self.shares_prompts = install_attention(model)
        """Whether a pass is a single sequence, in which completions share their prompt."""
        if autocast_dtype is torch.bfloat16 and model.device.type == "cpu":
            use_bfloat16_layers(model)
            use_rotary_layers(model)
        if autocast_dtype is not None and has_adapter(model):
            cast_frozen_linears(model, autocast_dtype)

    def passes(self, rows: Sequence[SharedPromptRow]) -> list[CollatedRows]:
        """The forward passes that a micro-batch takes: one when prompts can be shared, none without samples."""
        rows = [row for row in rows if row.samples]
        if not rows:
            return []
        if self.shares_prompts:
            return [collate_in_sequence(rows, self.model.device)]
        return [collate_padded(part, self.model.device) for part in fit_to_budget(one_sample_a_row(rows), self._token_budget)]

    def hidden_states(self, rows: CollatedRows) -> Tensor:
        """Final hidden states at `rows.scored_positions` [positions, hidden]."""
        device_type = self.model.device.type
        with torch.autocast(device_type, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None):
            if rows.layouts is None:
                # Padding on the right is never seen by a causal model, and without a mask attention is faster.
                output = self._body(input_ids=rows.input_ids, use_cache=False)
            else:
                output = self._body(
                    input_ids=rows.input_ids,
                    position_ids=rows.position_ids,
                    # Of the shape that models take as it is: who sees whom is in the sequences.
                    attention_mask=torch.empty(1, 1, 1, 1, device=self.model.device),
                    sequences=find_sequences(rows.layouts, self.model.device),
                    use_cache=False,
                )
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1)[rows.scored_positions]


def switch_off_dropout(model: PreTrainedModel) -> None:
    """Make every dropout probability 0, whatever mode the model is put in later."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010 (a module's attribute, unknown to the type checker)
    model.eval()


def recompute_activations(model: PreTrainedModel) -> None:
    """Keep only what goes into each layer, and compute the rest again in the backward pass.

    Raises:
        ModelError: The model cannot.
    """
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{model.config.model_type} cannot recompute its activations in the backward pass; set training.gradient_checkpointing = false"
        )
    model.activation_checkpointing_enable()
    # Layers recompute in training mode alone; dropout is off in either mode.
    model.train()
