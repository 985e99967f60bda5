from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from headrace.config.loading import load_recipe
from headrace.config.recipe import Recipe
from headrace.errors import CheckpointError, DataError, RewardError, RunFolderError
from headrace.launch.run_folder import RunFolder


def test_a_new_run_writes_its_resolved_recipe(tmp_path: Path) -> None:
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    with folder.opened(recipe, resume=False):
        pass
    assert load_recipe(folder.recipe) == recipe


def test_resuming_what_never_began_begins_it(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").opened(tiny_recipe(tmp_path), resume=True):
        assert (tmp_path / "run" / "recipe.toml").is_file()


def test_a_folder_with_files_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    with folder.opened(tiny_recipe(tmp_path), resume=False):
        pass
    with pytest.raises(RunFolderError, match="exists already"), folder.opened(tiny_recipe(tmp_path), resume=False):
        pass


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"max_steps": 50}},
        {"engine": {"max_concurrent_sequences": 2}},
        {"evaluation": {"temperature": 1.0}},
        {"algorithm": {"max_groups_without_signal": 9}},
    ],
)
def test_what_does_not_change_the_run_may_change(tmp_path: Path, sections: dict[str, dict[str, object]]) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.opened(tiny_recipe(tmp_path), resume=False):
        pass
    changed = tiny_recipe(tmp_path, **sections)
    with folder.opened(changed, resume=True):
        pass
    assert load_recipe(folder.recipe) == changed


def test_a_teacher_may_be_found_elsewhere_but_be_no_other(tmp_path: Path) -> None:
    def taught(**keys: object) -> Recipe:
        teacher = {"type": "server", "url": "http://a/v1", "model": "large"}
        return tiny_recipe(tmp_path, algorithm={"distillation_coefficient": 1.0}, teacher=teacher | keys)

    folder = RunFolder(tmp_path / "run")
    with folder.opened(taught(), resume=False):
        pass
    moved = taught(url="https://b/v1", api_key_env="KEY", timeout_seconds=5.0, max_attempts=9, max_concurrent_requests=2)
    with folder.opened(moved, resume=True):
        pass
    other = taught(model="small")
    with pytest.raises(CheckpointError, match=r"teacher.model: large there, small here"), folder.opened(other, resume=True):
        pass


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"run": {"seed": 1}}, r"run.seed: 0 there, 1 here"),
        ({"algorithm": {"surrogate": {"epsilon_high": 0.3}}}, r"algorithm.surrogate.epsilon_high: unset there, 0.3 here"),
        ({"schedule": {"type": "periodic"}}, r"schedule.type: sync there, periodic here"),
    ],
)
def test_what_changes_the_run_is_refused(tmp_path: Path, sections: dict[str, dict[str, object]], message: str) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.opened(tiny_recipe(tmp_path), resume=False):
        pass
    with pytest.raises(CheckpointError, match=message), folder.opened(tiny_recipe(tmp_path, **sections), resume=True):
        pass


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    with (
        folder.opened(recipe, resume=False),
        pytest.raises(RunFolderError, match="another process is training"),
        RunFolder(folder.path).opened(recipe, resume=True),
    ):
        pass


def fail_in(folder: RunFolder, recipe: Recipe, error: BaseException, written: dict[Path, str]) -> None:
    with folder.opened(recipe, resume=False):
        for file, text in written.items():
            file.write_text(text)
        raise error


def test_a_users_error_before_the_run_begins_removes_a_new_folder_only(tmp_path: Path) -> None:
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    for left_by_the_start in ([], [folder.event_log, folder.metrics]):
        for error in (DataError("no rows"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                fail_in(folder, recipe, error, dict.fromkeys(left_by_the_start, ""))
            assert not folder.path.exists()
    with pytest.raises(ZeroDivisionError), folder.opened(recipe, resume=False):
        raise ZeroDivisionError
    assert folder.recipe.is_file()
    with pytest.raises(DataError), folder.opened(recipe, resume=True):
        raise DataError("no rows")
    assert folder.recipe.is_file()


def test_a_users_error_after_the_run_has_begun_leaves_what_it_has(tmp_path: Path) -> None:
    recipe, folder = tiny_recipe(tmp_path), RunFolder(tmp_path / "run")
    with pytest.raises(RewardError):
        fail_in(folder, recipe, RewardError("all of them failed"), {folder.event_log: '{"event":"GroupAdmitted"}\n'})
    assert folder.event_log.is_file()
    with folder.opened(recipe, resume=True):
        pass
