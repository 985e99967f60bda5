"""The training prompts in their order: a new seeded permutation each epoch, and a position that survives a restart."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.data.prompt_text import PromptText
from headrace.data.rows import Row
from headrace.errors import DataError
from headrace.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """A prompt of no epoch yet."""

    row: int
    token_ids: NDArray[np.int32]
    text: PromptText
    columns: Row

    def in_epoch(self, epoch: int) -> Prompt:
        """The prompt as it is given to the policy."""
        ids = tuple(self.token_ids.tolist())
        return Prompt(row=self.row, epoch=epoch, token_ids=ids, text=self.text, columns=self.columns)


class ShuffledPrompts:
    """A `PromptSource` over prompts in memory.

    The order of an epoch depends on the seed and the epoch alone, so that a resumed run goes on exactly where it was.
    """

    def __init__(self, prompts: Sequence[TokenizedPrompt], *, seed: int, shuffle: bool, num_epochs: int | None):
        """Start at the first prompt of epoch 0.

        Args:
            prompts: At least one.
            seed: Fixes the order of every epoch.
            shuffle: False keeps the given order in every epoch.
            num_epochs: Passes over the prompts; None never ends.
        """
        assert prompts, "a prompt source without prompts"
        self._prompts = list(prompts)
        self._by_row = {prompt.row: prompt for prompt in prompts}
        self._seed = seed
        self._shuffle = shuffle
        self._num_epochs = num_epochs
        self._fingerprint = _fingerprint(prompts, seed=seed, shuffle=shuffle)
        self._epoch = 0
        self._index = 0
        self._order = self._order_of(0)

    def __len__(self) -> int:
        """Prompts in an epoch."""
        return len(self._prompts)

    def next_prompt(self) -> Prompt | None:
        """The next prompt, or None after the last epoch's last one."""
        if self._num_epochs is not None and self._epoch >= self._num_epochs:
            return None
        prompt = self._prompts[self._order[self._index]].in_epoch(self._epoch)
        self._move_to(self._epoch, self._index + 1)
        return prompt

    def get(self, *, epoch: int, row: int) -> Prompt:
        """One prompt by its name, whatever the position.

        Raises:
            DataError: The row is not among the training prompts.
        """
        if row not in self._by_row:
            raise DataError(f"row {row} is not among the {len(self)} training prompts: it is held out, too long, or of another data set")
        return self._by_row[row].in_epoch(epoch)

    def position(self) -> dict[str, int | str]:
        """Where the source stands: the epoch, the number of its prompts already given out, and what the data are."""
        return {"epoch": self._epoch, "index": self._index, "fingerprint": self._fingerprint, "num_prompts": len(self)}

    def seek(self, position: Mapping[str, int | str]) -> None:
        """Go on from a saved position.

        Raises:
            DataError: The position was saved with other prompts, another seed or another order.
        """
        if position.get("fingerprint") != self._fingerprint:
            raise DataError(
                f"the saved position belongs to data {position.get('fingerprint')} ({position.get('num_prompts')} prompts), but the "
                f"recipe gives data {self._fingerprint} ({len(self)} prompts); going on would skip or repeat prompts. Resume with the "
                "same data, model, run.seed and [data] settings, or start a new run"
            )
        self._move_to(int(position["epoch"]), int(position["index"]))

    def _move_to(self, epoch: int, index: int) -> None:
        if index == len(self):
            epoch, index = epoch + 1, 0
        if epoch != self._epoch:
            self._order = self._order_of(epoch)
        self._epoch, self._index = epoch, index

    def _order_of(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(len(self)))
        return permutation(len(self), np.random.SeedSequence(self._seed, spawn_key=(_EPOCH_ORDER, epoch)))


def permutation(length: int, seed: np.random.SeedSequence) -> list[int]:
    """A permutation of `range(length)` that is the same with every version of numpy.

    numpy promises a stable stream for its bit generators only, not for `Generator.permutation`.
    """
    draws = np.random.Philox(seed).random_raw(length)
    return np.argsort(draws, kind="stable").tolist()


_EPOCH_ORDER = 1
"""Stream of the seed; stream 0 draws the held-out rows."""


def _fingerprint(prompts: Sequence[TokenizedPrompt], *, seed: int, shuffle: bool) -> str:
    rows = [prompt.row for prompt in prompts]
    lengths = [len(prompt.token_ids) for prompt in prompts]
    digest = hashlib.sha256(json.dumps([seed, shuffle, rows, lengths]).encode())
    for prompt in prompts:
        digest.update(prompt.token_ids.astype("<i4").tobytes())
    return digest.hexdigest()[:16]
