"""An algorithm's loss as a line of text, for `headrace check` and `headrace algorithms`."""

from headrace.config import algorithm as parts
from headrace.config.algorithm import AlgorithmSection


def loss_formula(algorithm: AlgorithmSection) -> str:
    """The loss, and what its symbols stand for."""
    weight = "" if isinstance(algorithm.correction, parts.NoCorrection) else "w·"
    loss = _surrogate(algorithm.surrogate, weight)
    if algorithm.has_kl_loss:
        loss += f" + {algorithm.beta:g}·KL(π ‖ π_0) by {algorithm.kl_estimator}"
    if algorithm.entropy_coefficient:
        loss += f" - {algorithm.entropy_coefficient:g}·H(π)"
    return f"{algorithm.name}: Σ {loss}; {', '.join([*_ratio(algorithm), *_left_out(algorithm), f'A = {_advantage(algorithm)}'])}"


def division(algorithm: AlgorithmSection) -> str:
    """What becomes of the sum in the end."""
    match algorithm.denominator:
        case "tokens":
            return "Σ / completion tokens of the batch"
        case "sequences":
            return "Σ of each completion's mean / completions of the batch"
        case "constant":
            return "Σ / (completions of the batch · max_completion_length)"


def batch_rules(algorithm: AlgorithmSection) -> list[str]:
    """What becomes of groups and answers before they are learned from, where anything does."""
    rules = {
        "groups without signal are replaced": algorithm.dynamic_sampling,
        f"overlong buffer of {algorithm.overlong_buffer_share:.0%}": algorithm.overlong_buffer_share > 0,
        "truncated completions are left out": algorithm.mask_truncated_completions,
    }
    return [rule for rule, chosen in rules.items() if chosen]


def _surrogate(section: parts.Surrogate, weight: str) -> str:
    match section:
        case parts.ClipSurrogate():
            clip = f"-{weight}min(r·A, clip(r, {1 - section.epsilon:g}, {1 + section.clip_high:g})·A)"
            return clip if section.delta is None else f"{clip} with r ≤ {section.delta:g} where A < 0"
        case parts.CispoSurrogate():
            return f"-{weight}sg(min(r, {section.ratio_cap:g}))·A·log π"
        case parts.SapoSurrogate():
            return f"-{weight}4/τ·sigmoid(τ·(r - 1))·A with τ = {section.tau_positive:g} where A > 0, else {section.tau_negative:g}"
        case parts.M2poSurrogate():
            return f"-{weight}r·A over the nearest tokens, mean of (log r)² ≤ {section.threshold:g}"
        case parts.ImportanceSurrogate():
            return f"-{weight}r·A"
        case parts.ReinforceSurrogate():
            return f"-{weight}A·log π"
        case parts.PythonSurrogate():
            return f"{weight}{section.function}(r, log π, A)"


def _ratio(algorithm: AlgorithmSection) -> list[str]:
    if isinstance(algorithm.surrogate, parts.ReinforceSurrogate):
        ratio = []
    else:
        mean = " (geometric mean of the sequence)" if algorithm.importance_sampling_level == "sequence" else ""
        ratio = ["r = π/π_behaviour" + mean if algorithm.proximal == "behaviour" else "r = π/π_prox" + mean]
    match algorithm.correction:
        case parts.NoCorrection():
            weight = []
        case parts.TruncatedCorrection(level=level, low=low, high=high):
            weight = [f"w = π_prox/π_behaviour of each {level}, cut to [{low:g}, {high:g}]"]
        case parts.MaskedCorrection(level=level, low=low, high=high):
            where = "outside" if level != "geometric" else "where the geometric mean of the sequence is outside"
            of = "sequence" if level == "sequence" else "token"
            weight = [f"w = π_prox/π_behaviour of each {of}, left out {where} [{low:g}, {high:g}]"]
        case parts.IcePopCorrection(low=low, high=high):
            weight = [f"w = π_prox/π_behaviour of each token, left out outside [{low:g}, {high:g}]"]
    return [*ratio, *weight, *([f"π_prox by {algorithm.proximal}"] if algorithm.proximal != "behaviour" else [])]


def _left_out(algorithm: AlgorithmSection) -> list[str]:
    threshold = algorithm.off_policy_mask_threshold
    return [] if threshold is None else [f"sequences with A < 0 left out where mean log(π_behaviour/π) > {threshold:g}"]


def _advantage(algorithm: AlgorithmSection) -> str:
    outcome = _outcome(algorithm.advantage, "R - β·KL" if algorithm.penalises_rewards else "R")
    if not algorithm.distillation_coefficient:
        return outcome
    return f"{outcome}{' - ' if outcome else '-'}{algorithm.distillation_coefficient:g}·(log π_behaviour - log π_teacher)"


def _outcome(section: parts.Advantage, reward: str) -> str:
    match section:
        case parts.GroupAdvantage(scale_rewards="none"):
            return f"{reward} - group mean"
        case parts.GroupAdvantage(scale_rewards=scale):
            return f"({reward} - group mean) / {scale} std"
        case parts.LeaveOneOutAdvantage():
            return f"{reward} - mean of the siblings'"
        case parts.LengthWeightedAdvantage():
            return f"{reward} - length-weighted group mean"
        case parts.PassAtKAdvantage(k=k):
            return f"(E[best of {k} with it] - E[best of {k}]) / std"
        case parts.WhitenedAdvantage(baseline=baseline):
            return f"{reward}{' - group mean' if baseline == 'group' else ''}, whitened over the batch's tokens"
        case parts.GaeAdvantage(gamma=gamma, lam=lam):
            return f"GAE({gamma:g}, {lam:g}) of {reward} and the critic"
        case parts.NoOutcomeAdvantage():
            return ""
        case parts.PythonAdvantage(function=function):
            return f"{function}({reward})"
