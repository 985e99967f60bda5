"""Models that are there, before the weights of any are loaded: what can be refused is refused then."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headrace.errors import ModelError
from headrace.launch.adapters import base_of_adapter, is_adapter_folder, load_adapter
from headrace.launch.model_loading import load_config, load_policy, load_tokenizer, max_sequence_length
from headrace.launch.model_store import resolve


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundModel:
    """A model without its weights."""

    key: str
    """Where it was set, for instance `teacher.name_or_path`."""
    name: str
    """What was set."""
    path: Path | str
    """Folder or hub name; of an adapter, those of its base."""
    adapter: Path | None
    """Folder of an adapter to put into it."""
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase

    def load(self) -> PreTrainedModel:
        """The model with float32 weights, and with its adapter if it has one.

        Raises:
            UserError: The weights, or the adapter, cannot be loaded.
        """
        model = load_policy(self.path, dtype=torch.float32, config=self.config)
        if self.adapter is not None:
            load_adapter(model, self.adapter, base=self.path)
        return model

    def check_reads(self, policy: "FoundModel", *, longest_sequence: int) -> None:
        """Check that this model can read what a policy writes.

        Args:
            policy: Who writes.
            longest_sequence: Most tokens of a prompt with its completion.

        Raises:
            ModelError: It has another vocabulary, knows fewer token ids, or has too few positions.
        """
        different = _differences(self.tokenizer.get_vocab(), policy.tokenizer.get_vocab())
        if different:
            raise ModelError(
                f"{self.key} = {self.name!r} has another vocabulary than the policy: {len(different)} of {len(policy.tokenizer)} tokens "
                f"differ, for instance {different[0]!r}, so it would read other tokens than the policy writes; set it to a model of the "
                "policy's family"
            )
        rows, needed_rows = (model.config.get_text_config().vocab_size for model in (self, policy))
        if rows < needed_rows:
            raise ModelError(
                f"{self.key} = {self.name!r} knows token ids below {rows}, but the policy may sample any below {needed_rows}; set it to a "
                "model that knows as many"
            )
        positions = max_sequence_length(self.config)
        if positions is not None and positions < longest_sequence:
            raise ModelError(
                f"{self.key} = {self.name!r} has {positions} positions, but a prompt with its completion may have {longest_sequence} "
                "tokens; lower data.max_prompt_length or sampling.max_completion_length, or set it to a model with more"
            )


def find_model(
    name: str, *, key: str, chat_template: str | None = None, may_be_adapter: bool = False, base: str | None = None
) -> FoundModel:
    """Look for a model, and read its configuration and its tokenizer.

    Args:
        name: A folder, a packaged model's name, or a name on the hub.
        key: Where it was set, for messages.
        chat_template: To use instead of the tokenizer's own.
        may_be_adapter: Take an adapter's folder too.
        base: Where an adapter's base is when it is not where the adapter says.

    Raises:
        ModelError: It is missing, damaged, or no causal language model.
    """
    folder = Path(name).expanduser()
    adapter = folder if may_be_adapter and is_adapter_folder(folder) else None
    path = resolve(name, key=key) if adapter is None else base_of_adapter(adapter, fallback=base)
    return FoundModel(
        key=key,
        name=name,
        path=path,
        adapter=adapter,
        config=load_config(path, key=key),
        tokenizer=load_tokenizer(path, chat_template=chat_template),
    )


def _differences(theirs: dict[str, int], ours: dict[str, int]) -> list[str]:
    """Tokens that the two do not number alike."""
    return [] if theirs == ours else sorted(token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token))
