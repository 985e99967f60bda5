import pytest

from headrace.training.learning_rate import learning_rate_factor


def course(name: str, *, total: int, warmup: int) -> list[float]:
    return [learning_rate_factor(update, total_updates=total, warmup_updates=warmup, course=name) for update in range(total + 1)]


def test_constant_after_warmup() -> None:
    assert course("constant", total=5, warmup=2) == [0.5, 1, 1, 1, 1, 1]


def test_linear_is_0_just_after_the_last_update() -> None:
    assert course("linear", total=6, warmup=2) == [0.5, 1, 1, 0.75, 0.5, 0.25, 0]


def test_cosine_is_half_way_at_half_time() -> None:
    assert course("cosine", total=4, warmup=0) == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0])


def test_warmup_of_the_whole_run_ends_at_the_peak() -> None:
    assert course("linear", total=2, warmup=2) == [0.5, 1, 1]
