import importlib.util

import pytest

from headrace.errors import UserError
from headrace.telemetry.trackio_sink import TrackioTracker


@pytest.mark.skipif(importlib.util.find_spec("trackio") is not None, reason="trackio is installed")
def test_a_missing_package_is_an_error_at_construction(tmp_path):
    with pytest.raises(UserError, match=r"pip install 'headrace\[trackio\]'"):
        TrackioTracker(project="p", name="n", config={})
