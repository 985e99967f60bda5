from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from headrace.launch.threads import ThreadShares, thread_shares

AUTO = {"engine": {"threads": "auto"}, "training": {"threads": "auto"}}


@pytest.mark.parametrize(
    ("schedule", "cores", "share"),
    [("sync", 2, 2), ("periodic", 2, 1), ("async", 2, 1), ("async", 16, 8), ("async", 1, 1), ("sync", 1, 1)],
)
def test_sides_that_overlap_divide_the_cores(tmp_path: Path, schedule: str, cores: int, share: int) -> None:
    recipe = tiny_recipe(tmp_path, schedule={"type": schedule}, **AUTO)
    assert thread_shares(recipe, cores=cores) == ThreadShares(engine=share, trainer=share)


def test_numbers_of_the_recipe_are_kept(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, engine={"threads": 3}, training={"threads": "auto"})
    assert thread_shares(recipe, cores=8) == ThreadShares(engine=3, trainer=8)
