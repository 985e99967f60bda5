"""`[algorithm]`: what is learned from a batch. A named algorithm is a choice of parts; each part can be replaced."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from headrace.config.base import FunctionName, Section
from headrace.config.named_algorithms import NAMED_ALGORITHMS, AlgorithmName


class GroupAdvantage(Section):
    """Reward minus the group's mean, divided by a standard deviation (GRPO) or not at all (Dr. GRPO)."""

    type: Literal["group"] = "group"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Divide by the standard deviation of the group, of the batch, or not at all."""
    ddof: Literal[0, 1] = 1
    """Degrees of freedom taken off: 1 divides by n - 1 in the standard deviation, 0 by n."""
    scale_epsilon: float = Field(default=1e-4, gt=0)
    """Added to the standard deviation; it bounds what a nearly constant group can weigh."""


class LeaveOneOutAdvantage(Section):
    """Reward minus the mean of the siblings' (RLOO)."""

    type: Literal["leave_one_out"] = "leave_one_out"


class LengthWeightedAdvantage(Section):
    """Reward minus the group's mean weighted by length: the baseline of least variance (OPO)."""

    type: Literal["length_weighted"] = "length_weighted"


class PassAtKAdvantage(Section):
    """What a rollout adds to the best of k siblings drawn at random."""

    type: Literal["pass_at_k"] = "pass_at_k"
    k: int = Field(default=4, ge=1)
    """Rollouts of which the best one counts."""


class WhitenedAdvantage(Section):
    """Reward, made zero in mean and one in deviation over the batch's tokens (REINFORCE++)."""

    type: Literal["whitened"] = "whitened"
    baseline: Literal["none", "group"] = "none"
    """Subtract the group's mean before (REINFORCE++-baseline), or nothing."""


class GaeAdvantage(Section):
    """Generalized advantage estimation with a critic (PPO); needs `critic`."""

    type: Literal["gae"] = "gae"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of a reward one token later."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Weight of longer sums of rewards against the critic's values: 1 takes the return, 0 one step."""


class NoOutcomeAdvantage(Section):
    """No advantage from rewards, which are only reported: the teacher alone is learned from (on-policy distillation)."""

    type: Literal["none"] = "none"


class PythonAdvantage(Section):
    """A function of your own: (rewards of each group, completion lengths of each group) to advantages of each group."""

    type: Literal["python"] = "python"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`. A reward of None takes no part, and its advantage must be None."""
    needs_batch: bool = False
    """Whether the function compares groups, so that training must wait for the whole batch."""


Advantage = Annotated[
    GroupAdvantage
    | LeaveOneOutAdvantage
    | LengthWeightedAdvantage
    | PassAtKAdvantage
    | WhitenedAdvantage
    | GaeAdvantage
    | NoOutcomeAdvantage
    | PythonAdvantage,
    Field(discriminator="type"),
]


class NoCorrection(Section):
    """Tokens weigh the same, whoever sampled them."""

    type: Literal["none"] = "none"


class TruncatedCorrection(Section):
    """Truncated importance sampling (TIS): weights of tokens or of whole sequences, cut to an interval."""

    type: Literal["tis"] = "tis"
    level: Literal["token", "sequence"] = "token"
    """The weight of each token, or the product over its sequence."""
    low: float = Field(default=0.0, ge=0)
    """Smallest weight."""
    high: float = Field(default=2.0, gt=0)
    """Largest weight."""


class MaskedCorrection(Section):
    """Masked importance sampling (MIS): what lies outside the interval is left out."""

    type: Literal["mis"] = "mis"
    level: Literal["token", "sequence", "geometric"] = "token"
    """What is tested: the weight of each token, the product over its sequence, or the geometric mean over its sequence, which does not
    depend on length (tokens then keep weights of their own)."""
    low: float = Field(default=0.0, ge=0)
    """Smallest weight that is kept."""
    high: float = Field(default=5.0, gt=0)
    """Largest weight that is kept."""


class IcePopCorrection(Section):
    """IcePop: token weights, those outside the interval left out; a smaller weight is as suspicious as a larger one."""

    type: Literal["icepop"] = "icepop"
    low: float = Field(default=0.5, ge=0)
    """Smallest weight that is kept."""
    high: float = Field(default=5.0, gt=0)
    """Largest weight that is kept."""


Correction = Annotated[NoCorrection | TruncatedCorrection | MaskedCorrection | IcePopCorrection, Field(discriminator="type")]


class ClipSurrogate(Section):
    """PPO's clipped surrogate."""

    type: Literal["clip"] = "clip"
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below 1 - epsilon …"""
    epsilon_high: float | None = Field(default=None, gt=0)
    """… and above 1 + epsilon_high; unset takes `epsilon`."""
    delta: float | None = Field(default=None, gt=1)
    """Largest ratio of a token with a negative advantage (dual clip); unset is no bound."""

    @property
    def clip_high(self) -> float:
        """Upper clip distance in force."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


class CispoSurrogate(Section):
    """CISPO: REINFORCE weighted by the ratio, which is cut but never stops the gradient."""

    type: Literal["cispo"] = "cispo"
    ratio_cap: float = Field(default=5.0, gt=1)
    """Largest ratio that weighs; an absolute value, not a distance from 1."""


class SapoSurrogate(Section):
    """SAPO: a smooth gate in place of the clip."""

    type: Literal["sapo"] = "sapo"
    tau_positive: float = Field(default=1.0, gt=0)
    """Sharpness of the gate for tokens with a positive advantage …"""
    tau_negative: float = Field(default=1.05, gt=0)
    """… and for the others."""


class M2poSurrogate(Section):
    """M2PO: the ratio without a clip, over the tokens whose squared log-ratios average at most the threshold."""

    type: Literal["m2po"] = "m2po"
    threshold: float = Field(default=0.04, gt=0)
    """Largest mean of the squared log-ratio to the policy that sampled; the farthest tokens are left out until it holds."""


class ImportanceSurrogate(Section):
    """The ratio times the advantage, without a clip."""

    type: Literal["importance"] = "importance"


class ReinforceSurrogate(Section):
    """Plain REINFORCE: the log-probability times the advantage, whoever sampled."""

    type: Literal["reinforce"] = "reinforce"


class PythonSurrogate(Section):
    """A function of your own: (ratio, log-probabilities, advantages), each a tensor [tokens], to losses [tokens]."""

    type: Literal["python"] = "python"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`."""


Surrogate = Annotated[
    ClipSurrogate | CispoSurrogate | SapoSurrogate | M2poSurrogate | ImportanceSurrogate | ReinforceSurrogate | PythonSurrogate,
    Field(discriminator="type"),
]


class CriticSection(Section):
    """The critic of PPO: a value for every position."""

    name_or_path: str | None = None
    """A model whose backbone the critic has for itself; unset puts a value head on the policy's hidden states, which it does not change."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Of the critic's own AdamW; unset is 1e-4 for a value head and 1e-5 for a model of its own."""
    value_clip: float = Field(default=0.2, gt=0)
    """A value moves at most so far from the old one before its loss stops pulling; it matters with several updates a step."""

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate in force, before its course over the run."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-4 if self.name_or_path is None else 1e-5


class AlgorithmSection(Section):
    """A named algorithm, and what of it is changed. `headrace algorithms` lists the names with their parts."""

    name: AlgorithmName = "grpo"
    """Sets the default of every key below that it chooses differently."""
    num_generations: int = Field(default=8, ge=1)
    """Rollouts of each prompt. At least 2 where an advantage compares siblings."""
    advantage: Advantage = GroupAdvantage()
    """How much better a rollout did than was to be expected."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Ratios of tokens, or of whole sequences with the length taken out (GSPO)."""
    proximal: Literal["behaviour", "recompute", "loglinear"] = "behaviour"
    """The policy that the ratio is taken to: the one that sampled (`behaviour`: ordinary PPO), the one at the start of the step
    (`recompute`: decoupled PPO), or one interpolated between the two without a forward pass (`loglinear`: A-3PO)."""
    correction: Correction = NoCorrection()
    """Weights of pi_prox / pi_behaviour, where the two differ."""
    off_policy_mask_threshold: float | None = Field(default=None, gt=0)
    """Leave out a sequence with a negative advantage whose mean log-ratio pi_behaviour / pi exceeds this (DeepSeek-V3.2); unset is no
    bound."""
    surrogate: Surrogate = ClipSurrogate()
    """The loss of a token, made of ratio and advantage."""
    denominator: Literal["tokens", "sequences", "constant"] = "sequences"
    """What the summed loss is divided by: the batch's completion tokens (TRL's `dapo`), each sequence's own tokens and then the sequences
    (`grpo`), or completions · max_completion_length (`dr_grpo`)."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the initial policy; above 0 that policy is kept."""
    kl_estimator: Literal["k1", "k2", "k3", "unbiased"] = "k3"
    """Its estimate from one token; docs/losses.md says which gradient each has."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add it to the loss, or take it off the reward of each token before advantages are estimated."""
    distillation_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the reverse KL divergence to the teacher, token by token, in the advantages; above 0 needs `[teacher]`."""
    critic: CriticSection | None = None
    """The critic of advantage type 'gae'."""
    entropy_coefficient: float = 0.0
    """Weight of the policy's entropy, which is added to the objective."""
    num_minibatches: int = Field(default=1, ge=1)
    """Optimizer updates per step, each on its share of the batch."""
    dynamic_sampling: bool = False
    """Replace groups whose rewards tell no siblings apart: they are discarded, and their slots go to the next prompts (DAPO)."""
    max_groups_without_signal: int = Field(default=512, ge=1)
    """So many groups in a row that dynamic sampling discards end the run."""
    overlong_buffer_share: float = Field(default=0.0, ge=0, lt=1)
    """The last part of max_completion_length, as a share, over which the reward falls by up to 1 (DAPO's soft overlong punishment)."""
    mask_truncated_completions: bool = False
    """Leave completions that hit the length limit out of the loss and out of their group's statistics."""

    @model_validator(mode="before")
    @classmethod
    def _take_over_the_named_parts(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("name", "grpo")
        if not isinstance(name, str) or name not in NAMED_ALGORITHMS:
            return given
        return _merged(_UNNAMED_PARTS | NAMED_ALGORITHMS[name].settings, given)

    @property
    def compares_siblings(self) -> bool:
        """Whether a rollout's advantage needs other rollouts of its prompt."""
        return isinstance(self.advantage, GroupAdvantage | LeaveOneOutAdvantage | LengthWeightedAdvantage | PassAtKAdvantage) or (
            isinstance(self.advantage, WhitenedAdvantage) and self.advantage.baseline == "group"
        )

    @property
    def min_scored_rollouts(self) -> int:
        """So many rollouts of a group must have a reward for it to be trained on."""
        if not self.learns_from_rewards:
            return 0
        return 2 if self.compares_siblings else 1

    @property
    def learns_from_rewards(self) -> bool:
        """Whether rewards change the weights; else they are only reported, and there may be none."""
        return not isinstance(self.advantage, NoOutcomeAdvantage)

    @property
    def has_kl_loss(self) -> bool:
        """Whether the loss has a KL term, for which the initial policy scores every micro-batch."""
        return self.beta > 0 and self.kl_in == "loss"

    @property
    def penalises_rewards(self) -> bool:
        """Whether the KL divergence to the initial policy is taken off rewards, for which that policy scores every rollout."""
        return self.beta > 0 and self.kl_in == "reward"

    @property
    def needs_batch(self) -> str | None:
        """The setting because of which nothing can be trained on before the batch is complete; None when groups stand alone."""
        match self.advantage:
            case GroupAdvantage(scale_rewards="batch"):
                return "advantage.scale_rewards = 'batch'"
            case WhitenedAdvantage():
                return "advantage.type = 'whitened'"
            case PythonAdvantage(needs_batch=True):
                return "advantage.needs_batch = true"
        return "surrogate.type = 'm2po'" if isinstance(self.surrogate, M2poSurrogate) else None

    @property
    def weighs_tokens(self) -> bool:
        """Whether tokens weigh differently by who sampled them, or are left out because of it."""
        distrusts = self.off_policy_mask_threshold is not None or isinstance(self.surrogate, M2poSurrogate)
        return self.proximal != "behaviour" or distrusts

    @property
    def updates_in_step(self) -> bool:
        """Whether micro-batches are kept until the optimizer step, because it looks at all of them or makes several updates."""
        return self.num_minibatches > 1 or isinstance(self.surrogate, M2poSurrogate)


_UNNAMED_PARTS: dict[str, Any] = {"advantage": {"type": "group"}, "correction": {"type": "none"}, "surrogate": {"type": "clip"}}
"""Where an algorithm does not choose; so that a key of a part can be set without naming the part's type."""


def _merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The given settings over the defaults; a table of another type replaces the default one."""
    merged = defaults | given
    for key, default in defaults.items():
        table = given.get(key)
        if isinstance(default, dict) and isinstance(table, dict) and table.get("type", default.get("type")) == default.get("type"):
            merged[key] = default | table
    return merged
