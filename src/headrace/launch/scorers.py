"""From a recipe to the policies that are asked about rollouts: a teacher, and the initial policy where rewards depend on it."""

import copy

from transformers import PreTrainedModel

from headrace.config.recipe import Recipe
from headrace.config.teacher import SelfTeacher, ServerTeacher
from headrace.interfaces import LogprobScorer
from headrace.launch.policy import Policy, autocast_dtype
from headrace.launch.teacher import server_scorer
from headrace.launch.threads import ThreadShares
from headrace.training.frozen_policy import FrozenPolicy
from headrace.training.local_scorer import LocalScorer
from headrace.training.snapshot_scorer import SnapshotScorer


def make_teacher(recipe: Recipe, policy: Policy, threads: ThreadShares) -> LogprobScorer | None:
    """Whom the policy is distilled from; None without `[teacher]`. Call it before the policy's model is given to a trainer."""
    if isinstance(recipe.teacher, SelfTeacher):
        return SnapshotScorer(_frozen(recipe, copy.deepcopy(policy.model)), threads=threads.scorers)
    match policy.teacher:
        case None:
            return None
        case ServerTeacher() as server:
            return server_scorer(server)
        case model:
            return LocalScorer("teacher", _frozen(recipe, model), threads=threads.scorers)


def make_reference(recipe: Recipe, policy: Policy, threads: ThreadShares) -> LocalScorer | None:
    """A copy of the policy as it is now, where its log-probabilities are taken off rewards; else None."""
    if not recipe.algorithm.penalises_rewards:
        return None
    return LocalScorer("reference", _frozen(recipe, copy.deepcopy(policy.model)), threads=threads.scorers)


def _frozen(recipe: Recipe, model: PreTrainedModel) -> FrozenPolicy:
    return FrozenPolicy(
        model,
        temperature=recipe.sampling.temperature,
        autocast_dtype=autocast_dtype(recipe),
        token_budget=recipe.training.token_budget,
    )
