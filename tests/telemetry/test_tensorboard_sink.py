import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headrace.errors import RunFolderError
from headrace.telemetry.tensorboard_sink import TensorBoardTracker


def scalars(folder, name):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(each.step, each.value) for each in accumulator.Scalars(name)]


def test_tensorboard_reads_what_was_logged(tmp_path):
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    tracker.log(1, {"reward": 0.25, "loss": 1.0})
    tracker.log(2, {"reward": 0.5})
    # Read before close(): a killed run keeps its charts.
    assert scalars(tmp_path / "tensorboard", "reward") == [(1, 0.25), (2, 0.5)]
    assert scalars(tmp_path / "tensorboard", "loss") == [(1, 1.0)]
    tracker.close()


def test_a_resumed_run_hides_the_steps_it_repeats(tmp_path):
    first = TensorBoardTracker(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"reward": 0.0})
    first.close()
    second = TensorBoardTracker(tmp_path, version=1)
    second.log(2, {"reward": 1.0})
    second.close()
    assert scalars(tmp_path, "reward") == [(1, 0.0), (2, 1.0)]


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="file"):
        TensorBoardTracker(tmp_path / "file")


def test_no_sink_imports_torch():
    modules = [
        "curves",
        "event_log",
        "metrics",
        "metrics_log",
        "progress",
        "samples",
        "summary",
        "tensorboard_sink",
        "trackio_sink",
        "wandb_sink",
    ]
    code = "import sys\n" + "".join(f"import headrace.telemetry.{name}\n" for name in modules)
    code += "sys.exit(' '.join({'torch', 'tensorflow', 'transformers', 'matplotlib.pyplot', 'wandb', 'trackio'} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
