import importlib.util

import pytest

from headrace.errors import UserError
from headrace.telemetry.wandb_sink import WandbTracker


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_missing_package_is_an_error_at_construction(tmp_path):
    with pytest.raises(UserError, match=r"pip install 'headrace\[wandb\]'"):
        WandbTracker(project="p", name="n", folder=tmp_path, config={})
