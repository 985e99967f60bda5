from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from headrace.launch.assemble import make_buffer, make_limits
from headrace.types import Prompt


def test_a_sync_recipe_has_slots_for_one_batch_and_stops_after_its_steps(tmp_path: Path) -> None:
    limits = make_limits(tiny_recipe(tmp_path))
    assert (limits.slots, limits.groups_per_step, limits.max_staleness, limits.last_version) == (4, 4, 0, 5)


def test_a_recipe_in_epochs_ends_with_its_prompts(tmp_path: Path) -> None:
    assert make_limits(tiny_recipe(tmp_path, training={"max_steps": None})).last_version is None


def test_the_buffer_admits_no_more_than_the_slots(tmp_path: Path) -> None:
    buffer = make_buffer(tiny_recipe(tmp_path, schedule={"type": "async", "max_staleness": 2, "slots": 5}), clock=lambda: 0.0)
    groups = [buffer.admit(Prompt(row=row, epoch=0, token_ids=(1,), text="")) for row in range(5)]
    assert {group.deadline for group in groups} == {2}
    with pytest.raises(Exception, match="admission without a free slot"):
        buffer.admit(Prompt(row=5, epoch=0, token_ids=(1,), text=""))
