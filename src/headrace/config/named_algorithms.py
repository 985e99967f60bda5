"""The field's algorithms by name: which parts each one is made of, and where it comes from.

A name sets defaults and nothing else. What it does not mention is as `AlgorithmSection` has it: advantages of the group, ratios of
tokens to the policy that sampled, PPO's clip at 0.2, the mean over sequences, no KL term.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

AlgorithmName = Literal[
    "grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "m2po", "rloo", "reinforce_pp", "opo", "ppo", "areal", "a3po", "distill"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAlgorithm:
    """A choice of parts."""

    source: str
    idea: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys of `[algorithm]`."""


_DECOUPLED = {"correction": {"type": "mis", "level": "token", "high": 5.0}, "denominator": "tokens"}

NAMED_ALGORITHMS: dict[AlgorithmName, NamedAlgorithm] = {
    "grpo": NamedAlgorithm(source="arXiv 2402.03300", idea="advantages relative to siblings, PPO's clip, mean over sequences"),
    "dr_grpo": NamedAlgorithm(
        source="arXiv 2503.20783",
        idea="GRPO without its two divisions, by deviation and by length",
        settings={"advantage": {"type": "group", "scale_rewards": "none"}, "denominator": "constant"},
    ),
    "dapo": NamedAlgorithm(
        source="arXiv 2503.14476",
        idea="GRPO with a higher upper clip, mean over tokens, groups without signal replaced, overlong answers punished softly",
        settings={
            "surrogate": {"type": "clip", "epsilon": 0.2, "epsilon_high": 0.28},
            "denominator": "tokens",
            "dynamic_sampling": True,
            "overlong_buffer_share": 0.2,
        },
    ),
    "gspo": NamedAlgorithm(
        source="arXiv 2507.18071",
        idea="GRPO with ratio and clip of whole sequences",
        settings={
            "importance_sampling_level": "sequence",
            "surrogate": {"type": "clip", "epsilon": 3e-4, "epsilon_high": 4e-4},
        },
    ),
    "cispo": NamedAlgorithm(
        source="arXiv 2506.13585",
        idea="REINFORCE weighted by a cut ratio, so that no token loses its gradient",
        settings={"surrogate": {"type": "cispo"}, "denominator": "tokens"},
    ),
    "sapo": NamedAlgorithm(source="arXiv 2511.20347", idea="GRPO with a smooth gate for a clip", settings={"surrogate": {"type": "sapo"}}),
    "m2po": NamedAlgorithm(
        source="arXiv 2510.01161",
        idea="no clip; the tokens farthest from their sampler are left out until the rest is near enough",
        settings={"surrogate": {"type": "m2po"}, "denominator": "tokens"},
    ),
    "rloo": NamedAlgorithm(
        source="arXiv 2402.14740",
        idea="REINFORCE on whole sequences with the siblings' mean as the baseline",
        settings={"advantage": {"type": "leave_one_out"}, "surrogate": {"type": "reinforce"}, "denominator": "constant"},
    ),
    "reinforce_pp": NamedAlgorithm(
        source="arXiv 2501.03262",
        idea="rewards, with beta above 0 less a KL penalty, whitened over the batch's tokens, PPO's clip",
        settings={"advantage": {"type": "whitened"}, "denominator": "tokens", "kl_in": "reward", "kl_estimator": "k1"},
    ),
    "opo": NamedAlgorithm(
        source="arXiv 2505.23585",
        idea="REINFORCE on whole sequences with the baseline of least variance",
        settings={"advantage": {"type": "length_weighted"}, "surrogate": {"type": "reinforce"}, "denominator": "constant"},
    ),
    "ppo": NamedAlgorithm(
        source="arXiv 1707.06347",
        idea="a critic's values as the baseline, token by token",
        settings={"advantage": {"type": "gae"}, "critic": {}, "denominator": "tokens"},
    ),
    "areal": NamedAlgorithm(
        source="arXiv 2505.24298",
        idea="decoupled PPO: clipped against the policy at the start of the step, weighted for the one that sampled",
        settings={"proximal": "recompute", **_DECOUPLED},
    ),
    "a3po": NamedAlgorithm(
        source="arXiv 2512.06547",
        idea="decoupled PPO with an interpolated proximal policy: no extra forward pass",
        settings={"proximal": "loglinear", **_DECOUPLED},
    ),
    "distill": NamedAlgorithm(
        source="thinkingmachines.ai/blog/on-policy-distillation",
        idea="the reverse KL divergence to a teacher as the advantage of each token",
        settings={
            "advantage": {"type": "none"},
            "surrogate": {"type": "importance"},
            "denominator": "tokens",
            "distillation_coefficient": 1.0,
        },
    ),
}
