"""A Hugging Face causal language model that computes the engine's steps."""

import copy
import inspect
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from headrace.errors import ModelError
from headrace.rollout.model_weights import ModelWeights
from headrace.rollout.packed_linears import pack_linears
from headrace.rollout.place_cache import ATTENTION_NAME, DecodedToken, PlaceCache, Segment, Step

_KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}


class Decoder:
    """The model, its cache of places and its weights. All calls come from one thread."""

    def __init__(self, model: PreTrainedModel, *, num_places: int) -> None:
        """Make the model ready: evaluation mode, attention over places, packed layers where they help.

        Raises:
            ModelError: The model's layers are not all attention with an ordinary cache, or its logits come out wrong on it.
        """
        self._model = model.eval().requires_grad_(False)
        _own_config(model)
        self._cache = PlaceCache(num_places)
        self._check_layer_types()
        self._prepare_attention()
        self._weights = ModelWeights(model)
        pack_linears(model)

    @property
    def vocabulary_size(self) -> int:
        """Token ids that the model has embeddings for."""
        return self._model.get_input_embeddings().get_parameter("weight").shape[0]

    def compute(self, decoded: Sequence[DecodedToken], segments: Sequence[Segment]) -> torch.Tensor:
        """Write all tokens to the cache; returns the next token's logits [decoded tokens, vocabulary]."""
        step = Step(decoded, segments, device=self._model.device, dtype=self._model.dtype)
        self._cache.begin(step)
        inputs = {"input_ids": step.token_ids[None], "position_ids": step.positions[None], self._cache_argument: self._cache}
        if not decoded:
            self._model.base_model(**inputs, use_cache=True, step=step)
            return torch.empty(0, 0)
        kept = torch.arange(step.num_decoded, device=self._model.device) if segments else 0
        return self._model(**inputs, use_cache=True, step=step, logits_to_keep=kept).logits[0]

    def copy_place(self, *, source: int, target: int, length: int) -> None:
        """Copy the cache of a place's first `length` positions to another place."""
        self._cache.copy(source=source, target=target, length=length)

    def check_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Make sure that `load_weights` will work.

        Raises:
            ModelError: Names or shapes differ from the model's.
        """
        self._weights.check(weights)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy new weights into the model."""
        self._weights.load(weights)

    def copy_of(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights in the model's type, in memory of their own."""
        return {name: tensor.detach().to(self._model.device, self._model.dtype, copy=True) for name, tensor in weights.items()}

    def _check_layer_types(self) -> None:
        other = set(getattr(self._model.config, "layer_types", None) or ()) - _KNOWN_LAYER_TYPES
        if other:
            raise ModelError(
                f"{type(self._model).__name__} has layers of type {', '.join(sorted(other))}, for which the embedded engine has no cache; "
                "take a model with full or sliding-window attention only"
            )

    def _prepare_attention(self) -> None:
        """Put the engine's attention in, and compare its logits with those of the model as it came."""
        # transformers 5 renamed the argument in one of its minor versions.
        forward = inspect.signature(type(self._model).forward).parameters
        self._cache_argument = "cache" if "cache" in forward else "past_key_values"
        tokens = [token % self.vocabulary_size for token in range(1, 8)]
        try:
            with torch.inference_mode():
                expected = self._model(input_ids=torch.tensor([tokens], device=self._model.device), use_cache=False).logits[0, -1]
                self._model.set_attn_implementation(ATTENTION_NAME)
                self.compute([], [Segment(place=0, start=0, tokens=tokens[:4])])
                self.compute([], [Segment(place=0, start=4, tokens=tokens[4:-1])])
                found = self.compute([DecodedToken(place=0, position=len(tokens) - 1, token=tokens[-1])], [])[0]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self._unfit(f"failed on the engine's cache ({error})") from error
        difference = (found - expected).abs().max().item()
        tolerance = {torch.float32: 1e-3}.get(self._model.dtype, 0.1) * expected.abs().max().item()
        if not difference <= tolerance:
            raise self._unfit(f"gave logits on the engine's cache that differ from its own by {difference:.3g}")
        if self._cache.num_cached_layers != self._model.config.get_text_config().num_hidden_layers:
            raise self._unfit(f"cached only {self._cache.num_cached_layers} of its layers")

    def _unfit(self, problem: str) -> ModelError:
        return ModelError(
            f"{type(self._model).__name__} {problem}; the embedded engine needs a decoder whose every layer is attention with a "
            "key-value cache and whose attention can be set (attn_implementation), such as Llama, Qwen or Gemma"
        )


def _own_config(model: PreTrainedModel) -> None:
    """Copy the model's configuration: transformers shares it between models, and the engine's sets another attention."""
    copies: dict[int, object] = {}
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PreTrainedConfig):
            module.config = copy.deepcopy(config, copies)  # type: ignore[assignment]
