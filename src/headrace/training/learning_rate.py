"""The course of the learning rate, as a pure function of the number of the optimizer update."""

import math
from typing import Literal


def learning_rate_factor(update: int, *, total_updates: int, warmup_updates: int, course: Literal["constant", "linear", "cosine"]) -> float:
    """Fraction of the peak learning rate for one optimizer update.

    It rises linearly to 1 over the warm-up (update 0 already moves), then stays, or falls to reach 0 just after the last update.
    With 10 updates, 2 of warm-up, linear: 1/2, 1, 1, 7/8, 6/8, …, 1/8.

    Args:
        update: From 0, over the whole run: optimizer updates, not training steps and not micro-batches.
        total_updates: Updates of the run.
        warmup_updates: Updates of the warm-up.
        course: What follows the warm-up.
    """
    if update < warmup_updates:
        return (update + 1) / warmup_updates
    progress = min(1.0, (update - warmup_updates) / max(1, total_updates - warmup_updates))
    match course:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
