"""The nouns: everything that moves from a prompt to a training step.

Words, one an idea: a *prompt* is a task; a *rollout* one finished attempt at it; a *group* the sibling rollouts of
one prompt; a *sample* a trainable token sequence made from a rollout; a *version* the number of training steps
that a set of weights has had; *staleness* the trainer's version when a token is trained on, minus the version that
sampled it; a *deadline* the last trainer version at which a group may still be trained on.

Token arrays are numpy (int32 ids and versions, float32 log-probabilities), so that nothing here needs torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

FinishReason = Literal["stop", "length"]
"""`stop`: a stop token or stop string was sampled; `length`: the limit cut the completion off."""

Message = Mapping[str, str]
"""One turn of a conversation: `role` and `content`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task given to the policy, in one epoch. `(epoch, row)` names it for the ledger and for resuming."""

    row: int
    """Row of the data set, before any shuffling or filtering."""
    epoch: int
    token_ids: tuple[int, ...]
    text: str | tuple[Message, ...]
    """The prompt as the data set has it: plain text, or the messages of a conversation."""
    columns: Mapping[str, object] = field(default_factory=dict[str, object])
    """The data set's other columns, for the reward functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedGroup:
    """A prompt that holds a slot: it may be anywhere between admission and the step that trains it."""

    group_id: int
    """Number of the admission, from 0; it never repeats in a run, resumed or not."""
    prompt: Prompt
    version: int
    """Trainer version at admission."""
    deadline: int
    """Last trainer version at which the group may be trained on: `version + max_staleness`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 mean no truncation."""

    temperature: float
    top_p: float
    top_k: int
    max_completion_length: int
    """Tokens, the stop token included."""
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """`num_rollouts` independent completions of one prompt.

    `seed` fixes the random numbers: the draw of token t of rollout k depends on (seed, k, t) alone, not on what
    else is in the batch, so that the same weights give the same completions in any order.
    """

    prompt_ids: tuple[int, ...]
    num_rollouts: int
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """One finished attempt. The three arrays have one entry for each sampled token, the stop token included."""

    completion_ids: Ints
    logprobs: Floats
    """Log-probability of each token under the distribution it was really drawn from."""
    versions: Ints
    """Version of the weights that sampled each token; never decreasing."""
    finish_reason: FinishReason
    text: str
    """The decoded completion without special tokens and without the stop string's tail."""

    def __post_init__(self) -> None:
        lengths = (len(self.completion_ids), len(self.logprobs), len(self.versions))
        assert min(lengths) > 0, f"a rollout without tokens: {lengths}"
        assert len(set(lengths)) == 1, f"a rollout's arrays have lengths {lengths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReward:
    """The reward of one rollout. `total` is None when it must take no part in training: no function applied, or one failed."""

    total: float | None
    """Weighted sum of the functions that applied."""
    by_function: Mapping[str, float | None]
    """Unweighted value of each function; None where it did not apply or failed."""
    error: str | None = None
    """What failed, with the function's name; None when nothing did."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutLogprobs:
    """What another policy than the one that sampled says of a group's rollouts."""

    of_rollouts: tuple[Floats, ...]
    """Log-probability of each sampled token given the prompt and what precedes it, at the temperature that it was sampled with."""
    seconds: float
    """Time that scoring took, waiting not counted."""
    version: int | None = None
    """Of the policy that the scorer is a snapshot of; None for any other scorer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredGroup:
    """A group whose rollouts are all finished and scored: ready to be trained on."""

    group: AdmittedGroup
    rollouts: tuple[Rollout, ...]
    rewards: tuple[RolloutReward, ...]
    teacher_logprobs: tuple[Floats, ...] | None = None
    """What the teacher gives each rollout's tokens; None without one."""
    reference_logprobs: tuple[Floats, ...] | None = None
    """What the initial policy gives them, where rewards depend on it; None elsewhere."""
    teacher_version: int | None = None
    """Of the policy that the teacher is a snapshot of; None for any other teacher."""
    scoring_seconds: float = 0.0
    """Time that teacher and reference took, waiting not counted."""

    def __post_init__(self) -> None:
        assert len(self.rollouts) == len(self.rewards), (len(self.rollouts), len(self.rewards))

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of all rollouts."""
        return sum(len(rollout.completion_ids) for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int:
        """Version of the group's oldest token: what staleness is counted from."""
        return min(int(rollout.versions.min()) for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One trainable sequence: the completion's tokens carry the loss, the prompt's do not."""

    completion_ids: Ints
    logprobs: Floats
    versions: Ints
    advantages: Floats
    """Of each token; with a critic, what is earned at each token, from which the trainer makes advantages."""
    shadow_advantages: Mapping[str, Floats | None] = field(default_factory=dict[str, Floats | None])
    """By the names of algorithms that are only compared with; None where that one would leave the sample out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedPromptRow:
    """A prompt and samples that continue it: the prompt's tokens are computed once for all of them."""

    group_id: int
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens to compute: the prompt once, and every completion."""
        return len(self.prompt_ids) + self.num_loss_tokens

    @property
    def num_loss_tokens(self) -> int:
        """Completion tokens: the ones that carry the loss."""
        return sum(len(sample.completion_ids) for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """What one forward and backward pass computes. `minibatch` tells which optimizer update of the step it belongs to."""

    version: int
    """Trainer version that trains on it."""
    minibatch: int
    rank: int = 0
    """The trainer rank that computes it."""
    rows: tuple[SharedPromptRow, ...]
    shadow_rows: tuple[SharedPromptRow, ...] = ()
    """Of samples that only algorithms that are compared with would train on."""

    @property
    def oldest_version(self) -> int:
        """Version of its oldest token: what staleness is counted from."""
        return min(int(sample.versions.min()) for row in (*self.rows, *self.shadow_rows) for sample in row.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one training step did. `version` is the trainer's version after the step."""

    version: int
    skipped_updates: int
    """Optimizer updates left out because the loss or a gradient was not finite."""
    num_samples: int
    num_loss_tokens: int
    metrics: Mapping[str, float]
    """Names as users of the field know them: `loss`, `grad_norm`, `entropy`, `mismatch_kl`, `clip_ratio/low_mean`, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Totals of an engine since it started."""

    generated_tokens: int
    """Sampled tokens, of finished and of unfinished rollouts."""
    prefilled_tokens: int
    busy_seconds: float
    """Time in prefill and decode steps; the rest of its life the engine waited for requests."""
    loading_seconds: float
    """Time spent taking over new weights."""
    interruptions: int
    """Unfinished rollouts that went on under new weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The books, in groups: admitted = in flight + ready + trained + discarded, at any moment.

    `in_flight` groups are being generated or scored; `ready` ones are scored and wait, or are in the batch
    being trained on; `trained` ones were in a batch whose step is done.
    """

    admitted: int
    in_flight: int
    ready: int
    trained: int
    discarded: Mapping[str, int]
    """By reason."""
    ready_tokens: int
    trained_tokens: int
    discarded_tokens: int

    @property
    def live(self) -> int:
        """Groups that hold a slot."""
        return self.in_flight + self.ready

    @property
    def balances(self) -> bool:
        """Whether every admitted group is in exactly one place."""
        return self.admitted == self.in_flight + self.ready + self.trained + sum(self.discarded.values())
