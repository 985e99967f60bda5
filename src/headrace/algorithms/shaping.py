"""Changes to a reward that depend on how an answer was given, not on what it says."""


def overlong_penalty(length: int, *, max_length: int, buffer: int) -> float:
    """What an answer gets for being nearly too long: 0 outside the buffer, falling to -1 at its end.

    Source: DAPO (arXiv 2503.14476), Eq. 13. Behind the end the paper stays at -1, while verl and AReaL go on falling; an engine that
    stops at `max_length` never gets there.

    Args:
        length: Sampled tokens.
        max_length: Most tokens of an answer.
        buffer: Last tokens before it, over which the penalty grows; 0 is no penalty.
    """
    if buffer == 0:
        return 0.0
    return -min(max(length - (max_length - buffer), 0) / buffer, 1.0)
