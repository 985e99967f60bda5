"""A user's own parts of an algorithm, called with a few numbers before a model is loaded."""

from collections.abc import Callable
from typing import Any

import torch

from headrace.algorithms.credit import Credit
from headrace.algorithms.token_advantages import Outcomes
from headrace.config.algorithm import AlgorithmSection, PythonAdvantage
from headrace.errors import RecipeError
from headrace.training.composition import compose


def try_out(algorithm: AlgorithmSection, credit: Credit, token_losses: Callable[..., Any] | None) -> None:
    """Call the functions that an algorithm names, if it names any.

    Args:
        algorithm: The algorithm.
        credit: Its advantages.
        token_losses: Its surrogate, when that is the user's.

    Raises:
        UserError: One fails, or returns what cannot be trained on.
    """
    if isinstance(algorithm.advantage, PythonAdvantage):
        others = algorithm.num_generations - 1
        lengths = list(range(1, others + 2))
        credit.advantages_of([Outcomes(rewards=[first, *[0.5] * others], lengths=lengths) for first in (1.0, None)])
    if token_losses is not None:
        logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
        ratio = (logprobs - logprobs.detach()).exp()
        losses = compose(algorithm, token_losses=token_losses).surrogate(ratio, logprobs, torch.tensor([1.0, -1.0, 0.0])).losses
        if not losses.requires_grad:
            raise RecipeError(
                "algorithm.surrogate.function returned losses without a gradient, so nothing would be learned from them; make them of the "
                "ratio or the log-probabilities that it gets, without detaching both"
            )
