"""The trainer's part of a checkpoint: the policy as a Hugging Face folder, the optimizer, the version, the random state.

model.safetensors, config.json   the policy; loads with `AutoModelForCausalLM.from_pretrained`; or, of a policy with an adapter,
adapter_model.safetensors, adapter_config.json   the adapter alone; loads with `peft.PeftModel.from_pretrained`
optimizer.pt                     AdamW's moments
critic.pt                        the critic's weights and its AdamW's moments, where there is one
rng.pt                           random state of torch, numpy and Python
trainer_state.json               version, and names and shapes of the parameters, the critic's apart; written last
"""

import json
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from headrace.errors import CheckpointError
from headrace.training.adapter import has_adapter, learning_parameters, read_adapter, save_adapter
from headrace.training.policy_trainer import PolicyTrainer

STATE_FILE = "trainer_state.json"
OPTIMIZER_FILE = "optimizer.pt"
CRITIC_FILE = "critic.pt"
RANDOM_FILE = "rng.pt"


def save_checkpoint(trainer: PolicyTrainer, folder: Path) -> None:
    """Write everything that `load_checkpoint` needs into an existing folder.

    Raises:
        OSError: The disk is full, or not writable.
    """
    save_policy(trainer.model, folder)
    with _write_errors(folder):
        torch.save(trainer.optimizer.state(), folder / OPTIMIZER_FILE)
        torch.save(_random_state(), folder / RANDOM_FILE)
        if trainer.critic is not None:
            torch.save(trainer.critic.state(), folder / CRITIC_FILE)
    state = {"version": trainer.version, "model": _describe(trainer.model), "parameters": _shapes(trainer.model)}
    state["critic"] = _critic_shapes(trainer)
    (folder / STATE_FILE).write_text(json.dumps(state, indent=1), encoding="utf-8")


def save_policy(model: PreTrainedModel, folder: Path) -> None:
    """Write a model as a Hugging Face folder, or its adapter as one of peft.

    Raises:
        OSError: The disk is full, or not writable.
    """
    with _write_errors(folder):
        if has_adapter(model):
            folder.mkdir(exist_ok=True)
            save_adapter(model, folder)
        else:
            model.save_pretrained(folder)


def load_checkpoint(trainer: PolicyTrainer, folder: Path) -> None:
    """Go on from what `save_checkpoint` wrote; nothing is changed unless all of it can be read.

    Raises:
        CheckpointError: It is incomplete, damaged, or belongs to another model or another critic.
    """
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        _check_parameters(trainer.model, state, folder)
        _check_critic(trainer, state, folder)
        parameters = _saved_parameters(trainer.model, folder)
        optimizer_state = torch.load(folder / OPTIMIZER_FILE, weights_only=True, map_location=trainer.model.device)
        random_state = torch.load(folder / RANDOM_FILE, weights_only=True)
        critic_state = {}
        if trainer.critic is not None:
            critic_state = torch.load(folder / CRITIC_FILE, weights_only=True, map_location=trainer.model.device)
        trainer.optimizer.load_state(optimizer_state)
        if trainer.critic is not None:
            trainer.critic.load_state(critic_state)
    except (OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError, SafetensorError) as error:
        raise CheckpointError(
            f"the checkpoint {str(folder)!r} cannot be read ({error}); it is incomplete or damaged, so resume from another one"
        ) from error
    with torch.no_grad():
        for name, parameter in learning_parameters(trainer.model).items():
            parameter.copy_(parameters[name])
    _restore_random_state(random_state)
    trainer.resume_at(state["version"])


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Safetensors and torch report a failed write by errors of their own; from here on it is an `OSError`."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise OSError(f"{folder} cannot be written ({' '.join(str(error).split())})") from error


def _check_parameters(model: PreTrainedModel, state: dict[str, Any], folder: Path) -> None:
    saved, present = state["parameters"], _shapes(model)
    if saved == present:
        return
    name = min(name for name in saved.keys() | present.keys() if saved.get(name) != present.get(name))
    raise CheckpointError(
        f"the checkpoint {str(folder)!r} belongs to {state['model']}, not to {_describe(model)}: parameter {name!r} has shape "
        f"{saved.get(name, 'none')} there and {present.get(name, 'none')} here; set model.name_or_path to the model of the checkpoint"
    )


def _check_critic(trainer: PolicyTrainer, state: dict[str, Any], folder: Path) -> None:
    saved, present = state.get("critic"), _critic_shapes(trainer)
    if saved == present:
        return
    if saved is None:
        found, remedy = "no critic, but this run has one, whose values would start from nothing", "another run.output_dir"
    elif present is None:
        found, remedy = "a critic, but this run has none", "algorithm.advantage and algorithm.critic as they were"
    else:
        found, remedy = "a critic of other sizes", "algorithm.critic.name_or_path to the critic's model there"
    raise CheckpointError(f"the checkpoint {str(folder)!r} has {found}; set {remedy}")


def _saved_parameters(model: PreTrainedModel, folder: Path) -> dict[str, torch.Tensor]:
    if has_adapter(model):
        return read_adapter(folder)
    loaded: Any = type(model).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    saved, loading_info = loaded
    if loading_info["missing_keys"]:
        raise ValueError(f"weights are missing: {sorted(loading_info['missing_keys'])[:3]}")
    return dict(saved.named_parameters())


def _describe(model: PreTrainedModel) -> str:
    return f"{model.config.name_or_path or 'a model'} ({model.config.model_type}, {model.num_parameters():,} parameters)"


def _shapes(model: PreTrainedModel) -> dict[str, list[int]]:
    return {name: list(parameter.shape) for name, parameter in learning_parameters(model).items()}


def _critic_shapes(trainer: PolicyTrainer) -> dict[str, list[int]] | None:
    return None if trainer.critic is None else trainer.critic.shapes()


def _random_state() -> dict[str, Any]:
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    keys = torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": numpy_state | {"state": {"key": keys, "pos": numpy_state["state"]["pos"]}},
        "python": random.getstate(),
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    numpy_state = state["numpy"]
    keys = numpy_state["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state(numpy_state | {"state": {"key": keys, "pos": numpy_state["state"]["pos"]}})
    random.setstate(state["python"])
