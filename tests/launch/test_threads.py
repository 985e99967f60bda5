from pathlib import Path

from tiny_runs import tiny_recipe

from headrace.launch.threads import SharedCores, thread_shares

AUTO = {"engine": {"threads": "auto"}, "training": {"threads": "auto"}}


def test_a_side_takes_the_cores_that_the_other_leaves_idle(tmp_path: Path) -> None:
    shares = thread_shares(tiny_recipe(tmp_path, **AUTO), cores=8)
    with shares.trainer as of_trainer:
        assert of_trainer() == 8
        for _ in range(2):
            with shares.engine as of_engine:
                assert (of_trainer(), of_engine()) == (4, 4)
            assert of_trainer() == 8
    with shares.engine as of_engine:
        assert of_engine() == 8


def test_every_side_has_a_thread() -> None:
    cores = SharedCores(1)
    with cores.side() as first, cores.side() as second:
        assert (first(), second()) == (1, 1)


def test_a_side_that_fails_leaves_its_cores() -> None:
    cores = SharedCores(4)
    try:
        with cores.side():
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with cores.side() as share:
        assert share() == 4


def test_numbers_of_the_recipe_are_kept(tmp_path: Path) -> None:
    shares = thread_shares(tiny_recipe(tmp_path, engine={"threads": 3}, training={"threads": "auto"}), cores=8)
    with shares.engine as engine, shares.trainer as trainer:
        assert (engine(), trainer()) == (3, 8)
