from hypothesis import given
from hypothesis import strategies as st

from headrace.staleness.admission import deadline, max_slots


@given(admitted=st.integers(1, 500), groups_per_step=st.integers(1, 20), version=st.integers(0, 20), max_staleness=st.integers(0, 8))
def test_the_slots_are_areals_equation_3(admitted: int, groups_per_step: int, version: int, max_staleness: int) -> None:
    """floor((N - 1) / B) <= v + eta, with v·B groups trained, says that at most (eta + 1)·B are alive."""
    live = admitted - version * groups_per_step
    within_slots = live <= max_slots(max_staleness=max_staleness, groups_per_step=groups_per_step)
    assert within_slots == ((admitted - 1) // groups_per_step <= version + max_staleness)


def test_areals_own_capacity_values() -> None:
    """eta = 2, B = 4: 12 at version 0 with none alive; 7 when 5 are."""
    assert max_slots(max_staleness=2, groups_per_step=4) - 0 == 12
    assert max_slots(max_staleness=2, groups_per_step=4) - 5 == 7
    assert max_slots(max_staleness=0, groups_per_step=8) == 8


def test_a_deadline_is_max_staleness_after_admission() -> None:
    assert deadline(version=3, max_staleness=0) == 3
    assert deadline(version=3, max_staleness=4) == 7
