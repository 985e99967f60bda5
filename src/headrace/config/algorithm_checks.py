"""Combinations of an algorithm's parts that have no meaning, each refused with the reason."""

from collections.abc import Callable

from headrace.config.algorithm import (
    AlgorithmSection,
    ClipSurrogate,
    GaeAdvantage,
    IcePopCorrection,
    ImportanceSurrogate,
    M2poSurrogate,
    MaskedCorrection,
    NoCorrection,
    NoOutcomeAdvantage,
    PassAtKAdvantage,
    PythonAdvantage,
    ReinforceSurrogate,
    SapoSurrogate,
    TruncatedCorrection,
    WhitenedAdvantage,
)


def _siblings_to_compare(algorithm: AlgorithmSection) -> str | None:
    if algorithm.compares_siblings and algorithm.num_generations < 2:
        return (
            f"algorithm.num_generations = {algorithm.num_generations}, but advantage.type = {algorithm.advantage.type!r} compares "
            "siblings; set num_generations to 2 or more, or advantage.type to 'whitened' or 'gae'"
        )
    return None


def _subset_of_siblings(algorithm: AlgorithmSection) -> str | None:
    if isinstance(algorithm.advantage, PassAtKAdvantage) and algorithm.advantage.k >= algorithm.num_generations:
        return (
            f"algorithm.advantage.k = {algorithm.advantage.k} with num_generations = {algorithm.num_generations}: subsets of k rollouts "
            "that can be told apart need more rollouts than k; lower k or raise num_generations"
        )
    return None


def _whole_sequences(algorithm: AlgorithmSection) -> str | None:
    per_token = not isinstance(algorithm.surrogate, ClipSurrogate | ImportanceSurrogate | SapoSurrogate)
    if algorithm.importance_sampling_level == "sequence" and per_token:
        return (
            f"importance_sampling_level = 'sequence' with surrogate.type = {algorithm.surrogate.type!r}, which is made of the "
            "log-probability or ratio of each token; set importance_sampling_level to 'token', or surrogate.type to 'clip'"
        )
    return None


def _one_advantage_a_sequence(algorithm: AlgorithmSection) -> str | None:
    by_token = {
        "advantage.type = 'gae'": isinstance(algorithm.advantage, GaeAdvantage),
        "distillation_coefficient": algorithm.distillation_coefficient > 0,
        "advantage.type = 'whitened' and beta in the reward": isinstance(algorithm.advantage, WhitenedAdvantage)
        and algorithm.penalises_rewards,
    }
    found = [name for name, chosen in by_token.items() if chosen]
    if found and algorithm.importance_sampling_level == "sequence":
        return (
            f"importance_sampling_level = 'sequence' with {' and '.join(found)}: all tokens of a sequence share one ratio, so the gradient "
            "would be that of their mean advantage, and what tells them apart would be lost; set importance_sampling_level to 'token'"
        )
    return None


def _something_to_correct(algorithm: AlgorithmSection) -> str | None:
    if algorithm.proximal == "behaviour" and not isinstance(algorithm.correction, NoCorrection):
        return (
            f"correction.type = {algorithm.correction.type!r} with proximal = 'behaviour': the proximal policy is the one that sampled, "
            "so every weight is 1 (the ratio corrects already); set proximal to 'recompute' or 'loglinear', or correction.type to 'none'"
        )
    return None


def _correction_keeps_something(algorithm: AlgorithmSection) -> str | None:
    correction = algorithm.correction
    if isinstance(correction, TruncatedCorrection | MaskedCorrection | IcePopCorrection) and not correction.low < 1 < correction.high:
        return (
            f"correction.low = {correction.low:g} and high = {correction.high:g} leave out the weight 1 of a token sampled by the "
            "proximal policy itself; set low below 1 and high above"
        )
    return None


def _surrogate_with_proximal(algorithm: AlgorithmSection) -> str | None:
    alone = isinstance(algorithm.surrogate, SapoSurrogate | M2poSurrogate)
    if alone and algorithm.proximal != "behaviour":
        return (
            f"surrogate.type = {algorithm.surrogate.type!r} bounds the distance to the policy that sampled by itself, which proximal = "
            f"{algorithm.proximal!r} would do a second time; set proximal to 'behaviour'"
        )
    return None


def _loglinear_has_its_weight(algorithm: AlgorithmSection) -> str | None:
    if algorithm.proximal == "loglinear" and isinstance(algorithm.correction, NoCorrection):
        return (
            "proximal = 'loglinear' with correction.type = 'none': the interpolated ratio alone is a root of the true one, and the rest "
            "is the weight pi_prox / pi_behaviour; set correction.type to 'mis' or 'tis'"
        )
    return None


def _proximal_has_a_use(algorithm: AlgorithmSection) -> str | None:
    if not isinstance(algorithm.surrogate, ReinforceSurrogate):
        return None
    if algorithm.proximal == "loglinear":
        return (
            "proximal = 'loglinear' with surrogate.type = 'reinforce', which has no ratio: only the weight's part of pi / pi_behaviour "
            "would be left; set proximal to 'recompute', or surrogate.type to 'importance' or 'clip'"
        )
    if algorithm.proximal == "recompute" and isinstance(algorithm.correction, NoCorrection):
        return (
            "proximal = 'recompute' with surrogate.type = 'reinforce' and correction.type = 'none': neither ratio nor weight is made of "
            "it; set correction.type to 'tis' or 'mis', or proximal to 'behaviour'"
        )
    return None


def _critic_and_gae(algorithm: AlgorithmSection) -> str | None:
    gae = isinstance(algorithm.advantage, GaeAdvantage)
    if gae and algorithm.critic is None:
        return "advantage.type = 'gae' needs the values of a critic; add the table algorithm.critic (empty for a value head)"
    if algorithm.critic is not None and not gae:
        return f"algorithm.critic is given, but advantage.type = {algorithm.advantage.type!r} has no use for values; set it to 'gae'"
    return None


def _teacher_beside_a_critic(algorithm: AlgorithmSection) -> str | None:
    if isinstance(algorithm.advantage, GaeAdvantage) and algorithm.distillation_coefficient > 0:
        return (
            f"distillation_coefficient = {algorithm.distillation_coefficient:g} with advantage.type = 'gae': what a teacher thinks of a "
            "token is an advantage, but a critic would take it for a reward and predict it; set distillation_coefficient to 0, or another "
            "advantage.type"
        )
    return None


def _kl_has_a_gradient(algorithm: AlgorithmSection) -> str | None:
    if algorithm.beta > 0 and algorithm.kl_in == "loss" and algorithm.kl_estimator == "k1":
        return (
            "kl_estimator = 'k1' with kl_in = 'loss': the expected gradient of k1 is zero, so beta would do nothing; set kl_estimator to "
            "'k2', 'k3' or 'unbiased', or kl_in to 'reward'"
        )
    return None


def _kl_of_a_reward(algorithm: AlgorithmSection) -> str | None:
    if algorithm.beta > 0 and algorithm.kl_in == "reward" and algorithm.kl_estimator == "unbiased":
        return (
            "kl_estimator = 'unbiased' with kl_in = 'reward': its weight pi / pi_behaviour is known only when the loss is taken; set "
            "kl_estimator to 'k1' or 'k3', or kl_in to 'loss'"
        )
    return None


def _something_to_learn(algorithm: AlgorithmSection) -> str | None:
    if isinstance(algorithm.advantage, NoOutcomeAdvantage) and algorithm.distillation_coefficient == 0:
        return (
            "advantage.type = 'none' and distillation_coefficient = 0 leave nothing to learn from; set distillation_coefficient above 0 "
            "(with [teacher]), or another advantage.type"
        )
    return None


def _rewards_to_change(algorithm: AlgorithmSection) -> str | None:
    changes = {
        "beta with kl_in = 'reward'": algorithm.penalises_rewards,
        "overlong_buffer_share": algorithm.overlong_buffer_share > 0,
        "mask_truncated_completions": algorithm.mask_truncated_completions,
    }
    found = [name for name, chosen in changes.items() if chosen]
    if found and not algorithm.learns_from_rewards:
        return (
            f"{' and '.join(found)} would do nothing with advantage.type = 'none', which learns from no reward; leave out, or set "
            "another advantage.type"
        )
    return None


def _signal_to_sample_for(algorithm: AlgorithmSection) -> str | None:
    if not algorithm.dynamic_sampling:
        return None
    of_user = isinstance(algorithm.advantage, PythonAdvantage) and not algorithm.advantage.needs_batch
    signals = {
        f"advantage.type = {algorithm.advantage.type!r}": not algorithm.compares_siblings and not of_user,
        "distillation_coefficient": algorithm.distillation_coefficient > 0,
        "beta in the reward": algorithm.penalises_rewards,
    }
    found = [name for name, chosen in signals.items() if chosen]
    if found:
        return (
            f"dynamic_sampling replaces groups whose rewards alone teach nothing, but with {' and '.join(found)} these may have a signal; "
            "set dynamic_sampling to false"
        )
    return None


def _one_update_without_ratio(algorithm: AlgorithmSection) -> str | None:
    if isinstance(algorithm.surrogate, ReinforceSurrogate) and algorithm.num_minibatches > 1:
        return (
            f"surrogate.type = 'reinforce' does not see that the policy moves between num_minibatches = {algorithm.num_minibatches} "
            "updates; set num_minibatches to 1, or surrogate.type to 'importance' or 'clip'"
        )
    return None


ALGORITHM_CHECKS: tuple[Callable[[AlgorithmSection], str | None], ...] = (
    _siblings_to_compare,
    _subset_of_siblings,
    _whole_sequences,
    _one_advantage_a_sequence,
    _something_to_correct,
    _correction_keeps_something,
    _surrogate_with_proximal,
    _loglinear_has_its_weight,
    _proximal_has_a_use,
    _critic_and_gae,
    _teacher_beside_a_critic,
    _kl_has_a_gradient,
    _kl_of_a_reward,
    _something_to_learn,
    _rewards_to_change,
    _signal_to_sample_for,
    _one_update_without_ratio,
)
