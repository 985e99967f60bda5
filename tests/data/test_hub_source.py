import pytest

from headrace.config.data import HubSource
from headrace.data.hub_source import load_hub
from headrace.errors import DataError


def test_a_hub_that_cannot_be_reached(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="'org/no-such-data'") as caught:
        load_hub(HubSource(name="org/no-such-data"))
    assert "\n" not in str(caught.value)
