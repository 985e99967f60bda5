from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from headrace.launch.threads import ThreadShares, thread_shares

AUTO = {"engine": {"threads": "auto"}, "training": {"threads": "auto"}}


@pytest.mark.parametrize(
    ("policy", "schedule", "cores", "share"),
    [
        ("PASSIVE", "async", 2, 2),
        ("passive", "periodic", 4, 4),
        ("", "sync", 2, 2),
        ("", "periodic", 2, 1),
        ("ACTIVE", "async", 16, 8),
        ("ACTIVE", "async", 1, 1),
    ],
)
def test_sides_that_overlap_divide_the_cores_only_where_threads_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, schedule: str, cores: int, share: int
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    recipe = tiny_recipe(tmp_path, schedule={"type": schedule}, **AUTO)
    assert thread_shares(recipe, cores=cores) == ThreadShares(engine=share, trainer=share)


def test_numbers_of_the_recipe_are_kept(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, engine={"threads": 3}, training={"threads": "auto"})
    assert thread_shares(recipe, cores=8) == ThreadShares(engine=3, trainer=8)
