"""A Hugging Face causal language model that computes the engine's steps."""

import copy
import inspect
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from headrace.errors import ModelError
from headrace.rollout.attention import ATTENTION_NAME
from headrace.rollout.fused_layers import FusedLayers, can_fuse
from headrace.rollout.linears import pack_linears
from headrace.rollout.model_weights import ModelWeights
from headrace.rollout.place_cache import PlaceCache
from headrace.rollout.step import DecodedToken, PromptPlace, Segment, Step

_KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}


class Decoder:
    """The model, its cache and its weights. All calls come from one thread."""

    def __init__(self, model: PreTrainedModel, *, num_places: int) -> None:
        """Make the model ready: evaluation mode, attention over the cache, layers fused and packed where that helps.

        Raises:
            ModelError: The model's layers are not all attention with an ordinary cache, or its logits come out wrong on it.
        """
        self._model = model.eval().requires_grad_(False)
        _own_config(model)
        self._check_layer_types()
        self._cache = PlaceCache(num_places)
        # transformers 5 renamed the argument in one of its minor versions.
        forward = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in forward else "past_key_values"
        self._weights = ModelWeights(model)
        # From the middle of the vocabulary: a row of special tokens, which often come first, is far from all that a model has seen.
        tokens = [self.vocabulary_size // 2 + token for token in range(8)]
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0, -1]
        self._layers = FusedLayers(model, self._weights) if can_fuse(model) else None
        pack_linears(model, self._weights)
        self._check_logits(tokens, expected)

    @property
    def vocabulary_size(self) -> int:
        """Token ids that the model has embeddings for."""
        return self._model.get_input_embeddings().get_parameter("weight").shape[0]

    def compute(self, decoded: Sequence[DecodedToken], segments: Sequence[Segment]) -> torch.Tensor:
        """Write all tokens to the cache; returns the next token's logits [decoded tokens, vocabulary]."""
        step = Step(decoded, segments, device=self._model.device, dtype=self._model.dtype)
        self._cache.begin(step)
        if self._layers is not None:
            head = self._model.get_output_embeddings()
            assert head is not None, "a causal language model has an output layer"
            return head(self._layers(step, self._cache)[: step.num_decoded])
        inputs = {"input_ids": step.token_ids[None], "position_ids": step.positions[None], self._cache_argument: self._cache}
        kept = torch.arange(step.num_decoded, device=self._model.device)
        return self._model(**inputs, use_cache=True, step=step, logits_to_keep=kept).logits[0]

    def copy_place(self, *, source: int, target: int, length: int) -> None:
        """Copy what a rollout has cached behind its prompt, `length` tokens, to another place."""
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

    def _check_logits(self, tokens: list[int], expected: torch.Tensor) -> None:
        """Compare the logits after a prompt cached in two stretches and a token behind it with those of the model as it came."""
        prompt = PromptPlace(slot=0, length=len(tokens) - 2)
        try:
            with torch.inference_mode():
                if self._layers is None:
                    self._model.set_attn_implementation(ATTENTION_NAME)
                self.compute([], [Segment(prompt=prompt, place=None, start=0, tokens=tokens[:3])])
                self.compute([], [Segment(prompt=prompt, place=None, start=3, tokens=tokens[3:-2])])
                self.compute([], [Segment(prompt=prompt, place=0, start=len(tokens) - 2, tokens=tokens[-2:-1])])
                found = self.compute([DecodedToken(place=0, prompt=prompt, position=len(tokens) - 1, token=tokens[-1])], [])[0]
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
