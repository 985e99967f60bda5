"""Where models come from: a folder, the Hugging Face hub, or a packaged model that the Python package index carries."""

import difflib
import fcntl
import json
import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.config.cache_folder import cache_folder
from headrace.controller.checkpoints import sha256
from headrace.errors import ModelError
from headrace.launch.packaged_models import PACKAGED_MODELS, PackagedModel, download

MANIFEST = "headrace_manifest.json"
"""File of a fetched model with the SHA-256 of every other file; it is written last."""
MODEL_KEY = "model.name_or_path"
"""Where the policy's model is set."""
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """One line of `headrace models`."""

    name: str
    description: str
    license: str
    download_megabytes: int
    folder: Path | None
    """Where it lies when it has been fetched."""


def describe_models(cache: Path | None = None) -> tuple[ModelDescription, ...]:
    """The packaged models, and which of them are fetched."""
    folders = {name: (cache or cache_folder()) / "models" / name for name in PACKAGED_MODELS}
    return tuple(
        ModelDescription(
            name=name,
            description=model.description,
            license=model.license,
            download_megabytes=model.download_megabytes,
            folder=folders[name] if (folders[name] / MANIFEST).is_file() else None,
        )
        for name, model in PACKAGED_MODELS.items()
    )


def resolve(name_or_path: str, *, key: str = MODEL_KEY, cache: Path | None = None) -> Path | str:
    """Turn a recipe's `model.name_or_path` into a checked folder, or into a hub name for transformers.

    A packaged model is fetched when it is not there yet.

    Args:
        name_or_path: What was set.
        key: Where it was set, for the message.
        cache: Folder of the packaged models; `cache_folder()` when None.

    Raises:
        ModelError: Nothing of that name, or a damaged folder.
    """
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        check_folder(folder, key=key)
        return folder
    if name_or_path in PACKAGED_MODELS:
        return fetch(name_or_path, cache=cache)
    if _HUB_NAME.fullmatch(name_or_path) and not folder.exists():
        return name_or_path
    near = difflib.get_close_matches(name_or_path, PACKAGED_MODELS, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ModelError(
        f"there is no model {name_or_path!r}: no such folder, and no packaged model of that name; {hint}set {key} to a Hugging "
        f"Face model folder, a packaged model ({', '.join(PACKAGED_MODELS)}) or a hub name such as org/name"
    )


def fetch(name: str, *, cache: Path | None = None) -> Path:
    """Get a packaged model: download, verify, convert to safetensors. Nothing is done when it is there and unharmed.

    An interrupted fetch goes on: a wheel that was downloaded whole is used again, and a conversion is written aside and renamed.

    Args:
        name: A key of `PACKAGED_MODELS`.
        cache: Folder to keep it in; `cache_folder()` when None.

    Returns:
        The model folder.

    Raises:
        ModelError: No such model, no network, a wrong checksum, or a package that converting needs is missing.
    """
    if name not in PACKAGED_MODELS:
        raise ModelError(f"there is no packaged model {name!r}; there are: {', '.join(PACKAGED_MODELS)}")
    models = (cache or cache_folder()) / "models"
    folder = models / name
    if _is_whole(folder):
        return folder
    try:
        with _exclusive(models / f"{name}.partial") as partial:
            _fetch_into(folder, PACKAGED_MODELS[name], partial)
            shutil.rmtree(partial)
    except OSError as error:
        raise ModelError(
            f"packaged model {name!r} cannot be fetched into {models}: {error.strerror or error}; HEADRACE_CACHE sets another folder"
        ) from error
    return folder


def _fetch_into(folder: Path, model: PackagedModel, partial: Path) -> None:
    # transformers takes seconds to import; listing the models, or using one that is there, does without.
    from headrace.launch.gguf_conversion import convert

    converted = partial / "converted"
    for unfinished in (converted, folder):
        if unfinished.exists():
            shutil.rmtree(unfinished)
    convert(model, download(model, partial), converted)
    _write_manifest(converted)
    converted.rename(folder)


@contextmanager
def _exclusive(partial: Path) -> Iterator[Path]:
    """Hold a folder against other processes; the lock ends with this process, however it ends."""
    partial.mkdir(parents=True, exist_ok=True)
    with partial.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ModelError(f"another process is fetching into {partial}; start again when it is done") from error
        yield partial


def check_folder(folder: Path, *, key: str = MODEL_KEY) -> None:
    """Check that a model folder can be loaded, without reading its weights.

    Args:
        folder: The folder.
        key: Where it was set, for the message.

    Raises:
        ModelError: No `config.json`, no weights, a missing shard, or a safetensors file that is cut short.
    """
    if (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder} is an adapter, not a whole model; make one with headrace export {folder} OUT, and set {key} to OUT")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is not a model folder: it has no config.json; set {key} to a Hugging Face model folder")
    shards = sorted(folder.glob("*.safetensors"))
    if not shards and not any(folder.glob("pytorch_model*.bin")):
        raise ModelError(f"model folder {folder} has no weights: neither *.safetensors nor pytorch_model*.bin; copy them there again")
    for index in folder.glob("*.safetensors.index.json"):
        _check_shards_present(index)
    for shard in shards:
        _check_whole(shard)


def _check_shards_present(index: Path) -> None:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} is damaged ({error!r}); copy the model folder again") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise ModelError(f"model folder {index.parent} lacks {', '.join(missing)} of the {len(names)} files of its weights; copy it again")


def _check_whole(shard: Path) -> None:
    """A safetensors file is 8 bytes of header length, the header (JSON with every tensor's byte range), and the tensors."""
    size = shard.stat().st_size
    try:
        with shard.open("rb") as file:
            (header_size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(header_size)) if header_size <= size else None
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"] if header else []
    except (struct.error, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{shard} is not a readable safetensors file ({error}); copy it again") from error
    expected = 8 + header_size + max(ends, default=0)
    if size != expected:
        raise ModelError(f"{shard} is damaged: it has {size} bytes, but its header promises {expected}; copy it again")


def _write_manifest(folder: Path) -> None:
    checksums = {file.name: sha256(file) for file in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(checksums, indent=2))


def _is_whole(folder: Path) -> bool:
    try:
        checksums = json.loads((folder / MANIFEST).read_bytes())
        return all(sha256(folder / name) == checksum for name, checksum in checksums.items())
    except (OSError, ValueError):
        return False
