from small_groups import prompt

from headrace.controller.rollouts import request_seed


def test_a_prompts_seed_depends_on_the_run_the_purpose_the_epoch_and_the_row() -> None:
    seeds = {
        request_seed(seed, purpose, prompt(row, epoch=epoch))
        for seed in (0, 1)
        for purpose in ("train", "evaluate")
        for epoch in (0, 1)
        for row in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_prompts_seed_is_the_same_in_every_process() -> None:
    """A number that was written down once: a resumed run draws what the killed one would have drawn."""
    assert request_seed(0, "train", prompt(0)) == 6578950792936650312
