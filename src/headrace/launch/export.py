"""`headrace export`: a trained model as a Hugging Face folder that needs nothing else, an adapter merged into its base."""

import shutil
import tomllib
from pathlib import Path

import torch

from headrace.errors import ModelError, RunFolderError
from headrace.launch.adapters import base_of_adapter, is_adapter_folder, load_adapter, merge_adapter
from headrace.launch.model_loading import load_policy, load_tokenizer
from headrace.launch.model_store import check_folder
from headrace.launch.run_folder import RunFolder
from headrace.telemetry.run_files import disk_errors
from headrace.training.checkpoint import CRITIC_FILE, OPTIMIZER_FILE, RANDOM_FILE, STATE_FILE, save_policy
from headrace.training.snapshot_scorer import SNAPSHOT_FILE

_OF_A_RUN = (CRITIC_FILE, OPTIMIZER_FILE, RANDOM_FILE, SNAPSHOT_FILE, STATE_FILE, "run_state.json", "manifest.json")
"""Files of a checkpoint that are of no use to a model."""


def export(source: Path, target: Path) -> None:
    """Write a whole model.

    Weights are float32, as they were trained: in a narrower type, most of what an adapter adds would be rounded away.

    Args:
        source: A run's folder, of which `final` is taken, or a model's or an adapter's.
        target: The folder to be written; it must not exist, or be empty.

    Raises:
        RunFolderError: The target exists, or cannot be written.
        ModelError: There is no model at the source.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunFolderError(f"{target} exists already, and exporting would overwrite it; choose another folder")
    run = RunFolder(source)
    folder = _trained_model(run) if run.recipe.is_file() else source
    partial = target.with_name(f"{target.name}.partial")
    with disk_errors(target):
        shutil.rmtree(partial, ignore_errors=True)
        if is_adapter_folder(folder):
            _merge(folder, partial, fallback=_model_of_recipe(run))
        else:
            check_folder(folder)
            shutil.copytree(folder, partial, ignore=shutil.ignore_patterns(*_OF_A_RUN))
        if target.exists():
            target.rmdir()
        partial.rename(target)


def _trained_model(run: RunFolder) -> Path:
    if not run.final.is_dir():
        raise ModelError(
            f"{run.path} has no {run.final.name}, so the run has not finished; go on with --resume, or give one of its checkpoints"
        )
    return run.final


def _model_of_recipe(run: RunFolder) -> str | None:
    if not run.recipe.is_file():
        return None
    return str(tomllib.loads(run.recipe.read_text(encoding="utf-8"))["model"]["name_or_path"])


def _merge(folder: Path, target: Path, *, fallback: str | None) -> None:
    base = base_of_adapter(folder, fallback=fallback)
    model = load_policy(base, dtype=torch.float32)
    load_adapter(model, folder, base=base)
    merge_adapter(model)
    save_policy(model, target)
    load_tokenizer(folder if (folder / "tokenizer_config.json").is_file() else base).save_pretrained(target)
