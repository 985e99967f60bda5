"""Who may start: slots, deadlines, and the count that they come to.

Symbols: B groups a training step, η = max_staleness, v the trainer's version. At most `slots` ≤ (η + 1)·B groups are
alive (admitted, and neither published nor discarded), so that the number ever admitted and not discarded is at most
(v + η + 1)·B: AReaL's Eq. 3, ⌊(N − 1) / B⌋ ≤ v + η, is the same count (arXiv 2505.24298, §4.1).
"""


def max_slots(*, max_staleness: int, groups_per_step: int) -> int:
    """Most groups that may be alive: (max_staleness + 1) · groups_per_step."""
    return (max_staleness + 1) * groups_per_step


def deadline(*, version: int, max_staleness: int) -> int:
    """Last trainer version at which a group admitted at `version` may be trained on.

    Its oldest token is sampled by `version` or later, so that no token is older than max_staleness then.
    """
    return version + max_staleness
