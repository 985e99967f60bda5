import pytest

from headrace.algorithms.shaping import overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0), (500, -1.0)]
)
def test_the_penalty_falls_over_the_buffer_and_stays_behind_it(length, penalty):
    assert overlong_penalty(length, max_length=100, buffer=20) == pytest.approx(penalty)


@pytest.mark.parametrize("length", [1, 100, 101])
def test_without_a_buffer_there_is_no_penalty(length):
    assert overlong_penalty(length, max_length=100, buffer=0) == 0.0
