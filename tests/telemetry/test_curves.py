import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from telemetry.small_events import equal_group, evaluation, mixed_group, reward, rollout, step_finished, trained_group

from headrace.errors import RunFolderError
from headrace.telemetry.curves import plot_curves, running_mean
from headrace.telemetry.metrics_log import MetricsLog


def picture(folder, events):
    log = MetricsLog(folder / "metrics.jsonl")
    for event in events:
        log.handle(0.0, event)
    log.close()
    plot_curves(folder / "metrics.jsonl", folder / "curves.png", title="a run")
    return imread(folder / "curves.png")[:, :, :3]


def test_every_panel_has_its_curve(tmp_path):
    steps = [step_finished(version, [mixed_group(), equal_group(1, value=version % 2)]) for version in range(1, 30)]
    image = picture(tmp_path, [evaluation(0, 0.1), *steps, evaluation(29, 0.8)])
    height, width, _ = image.shape
    colourful = image.max(axis=2) - image.min(axis=2) > 0.3
    for rows in (slice(height // 2), slice(height // 2, height)):
        for columns in (slice(width // 2), slice(width // 2, width)):
            assert colourful[rows, columns].sum() > 200


def test_a_run_whose_rewards_are_missing_can_be_drawn(tmp_path):
    unscored = trained_group(0, [rollout([0])], [reward(None)])
    assert picture(tmp_path, [step_finished(1, [unscored]), step_finished(2)]).std() > 0.01


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(RunFolderError, match="no training step yet"):
        picture(tmp_path, [evaluation(0, 0.1)])
    assert not (tmp_path / "curves.png").exists()


@given(st.lists(st.floats(-10, 10), max_size=12), st.integers(1, 5))
def test_running_mean_is_the_mean_of_the_values_so_far(values, window):
    expected = [np.mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
    np.testing.assert_allclose(running_mean(values, window), expected, atol=1e-9)
