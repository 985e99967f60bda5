"""LoRA adapters: put into a model to be trained, read from a folder, merged into a model of their own. peft is imported here alone."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from headrace.config.lora import LoraSection
from headrace.errors import ModelError, RecipeError
from headrace.launch.model_store import resolve
from headrace.launch.packaged_models import PACKAGED_MODELS
from headrace.training.adapter import ADAPTER, learning_parameters, read_adapter

CONFIG_FILE = "adapter_config.json"


def check_peft(what: str) -> None:
    """Make sure that peft is installed.

    Args:
        what: What needs it.

    Raises:
        RecipeError: It is not.
    """
    if importlib.util.find_spec("peft") is None:
        raise RecipeError(f"{what} needs the package peft, which is not installed; run pip install 'headrace[lora]'")


def linear_layers(config: PreTrainedConfig) -> list[str]:
    """Names of a model's linear layers but the output layer, for which no weights are loaded."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    head = model.get_output_embeddings()
    return [name for name, module in model.named_modules() if type(module) is torch.nn.Linear and module is not head]


def add_adapter(model: PreTrainedModel, lora: LoraSection, *, base: Path | str, seed: int) -> None:
    """Freeze a model and put a new adapter into it, in float32: A random, B zero, so that the model computes what it did.

    Args:
        model: Changed in place.
        lora: Which layers (some of `linear_layers`, as `check_targets` holds), and how.
        base: Where the model came from; a saved adapter says so.
        seed: Of A.

    Raises:
        RecipeError: peft is not installed.
    """
    check_peft("[lora]")
    from peft import LoraConfig

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] # peft computes with numbers that are not whole, too
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        _inject(model, config, base)


def load_adapter(model: PreTrainedModel, folder: Path, *, base: Path | str) -> None:
    """Put a saved adapter into its base, as it was trained.

    Raises:
        RecipeError: peft is not installed.
        ModelError: The adapter is damaged, of another kind than plain LoRA, or another model's.
    """
    check_peft(f"the adapter {str(folder)!r}")
    from peft import LoraConfig, PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(folder))
        saved = read_adapter(folder)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise ModelError(f"the adapter {str(folder)!r} cannot be read ({error}); copy it again") from error
    if not isinstance(config, LoraConfig) or config.use_dora or config.bias != "none" or config.modules_to_save:
        raise ModelError(
            f"the adapter {str(folder)!r} is not plain LoRA (no DoRA, no biases, no whole modules), and nothing else can be computed here; "
            "merge it with peft and give the merged model's folder"
        )
    try:
        _inject(model, config, base)
    except ValueError as error:
        raise ModelError(f"the adapter {str(folder)!r} does not fit its base {str(base)!r}: {error}") from error
    _copy(saved, model, folder)


def is_adapter_folder(folder: Path) -> bool:
    """Whether it holds an adapter, not a whole model."""
    return (folder / CONFIG_FILE).is_file()


def base_of_adapter(folder: Path, *, fallback: str | None = None) -> Path | str:
    """Where the base of a saved adapter is: what its configuration says, a packaged model of that name, or the fallback.

    Args:
        folder: The adapter's.
        fallback: `model.name_or_path` of the recipe, when there is one.

    Raises:
        ModelError: None of them is there.
    """
    try:
        name = str(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / CONFIG_FILE} cannot be read ({error!r}); copy the adapter again") from error
    if not Path(name).expanduser().is_dir():
        # Written on another machine, or before the cache was moved.
        name = next((packaged for packaged in PACKAGED_MODELS if packaged == Path(name).name), fallback or name)
    return resolve(name, key=f"base_model_name_or_path of {folder / CONFIG_FILE}")


def merge_adapter(model: PreTrainedModel) -> None:
    """Add scale · B · A to the weights of an adapted model, in their type, and take the adapter out."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "lora_A"):
            layer: Any = module
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer.base_layer)
    del model.peft_config


def _inject(model: PreTrainedModel, config: Any, base: Path | str) -> None:
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, model, ADAPTER)
    config.base_model_name_or_path = str(base.resolve()) if isinstance(base, Path) else base


def _copy(saved: dict[str, torch.Tensor], model: PreTrainedModel, folder: Path) -> None:
    parameters = learning_parameters(model)
    wrong = [name for name in saved.keys() | parameters.keys() if name not in parameters or name not in saved]
    wrong += [name for name in saved.keys() & parameters.keys() if saved[name].shape != parameters[name].shape]
    if wrong:
        raise ModelError(
            f"the adapter {str(folder)!r} does not fit its base ({min(wrong)} is missing on one side or of another shape); it belongs to "
            "another model"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])
