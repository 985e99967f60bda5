"""Whole runs of a random model of a few thousand parameters: seconds on a laptop, everything real but the size."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headrace.config.loading import parse_recipe
from headrace.config.recipe import Recipe

WORDS = ["<end>", *map(str, range(10)), "+", "=", "what", "is", "?"]

REWARDS = '''
import random, time

def likes_sevens(prompts, completions, **columns):
    """The share of sevens: every group has signal, and a policy can learn it."""
    return [text.split().count("7") / 8 for text in completions]

def slowly(prompts, completions, **columns):
    """The same after a while that differs from prompt to prompt, so that groups finish in another order than they began."""
    time.sleep(random.Random(f"{SHUFFLE}{prompts[0]}").random() * 0.05)
    return likes_sevens(prompts, completions)

def sleepy(prompts, completions, **columns):
    if len(completions) > 2:  # not in the trial before training
        time.sleep(60)
    return [0.0] * len(completions)
'''


def make_inputs(folder: Path, *, num_prompts: int = 12, shuffle: int = 0, seed: int = 0) -> None:
    """Write a model folder, a data set and a module of rewards."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder / "model")
    rows = [{"prompt": f"what is {number // 10} + {number % 10} ?", "answer": "7"} for number in range(num_prompts)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(f"SHUFFLE = {shuffle}\n{REWARDS}")


def tiny_recipe(folder: Path, **sections: dict[str, Any]) -> Recipe:
    """A float32 recipe over `make_inputs`' files; keys of the sections given come on top."""
    table: dict[str, dict[str, Any]] = {
        "run": {"output_dir": str(folder / "run"), "stall_seconds": 60},
        "model": {"name_or_path": str(folder / "model")},
        "data": {"source": {"type": "file", "path": str(folder / "data.jsonl")}},
        "rewards": {"functions": [{"type": "python", "function": f"{folder / 'rewards.py'}:likes_sevens"}]},
        "sampling": {"max_completion_length": 8},
        "schedule": {"type": "sync"},
        "algorithm": {"num_generations": 4},
        "training": {"prompts_per_step": 4, "max_steps": 5, "learning_rate": 1e-3, "autocast": "none", "threads": 1, "token_budget": 128},
        "engine": {"dtype": "float32", "threads": 1, "max_concurrent_sequences": 16},
        "telemetry": {"report_to": []},
    }
    for name, section in sections.items():
        table.setdefault(name, {}).update(section)
    return parse_recipe(table, origin="tiny recipe")


def parameters(model_folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a saved model."""
    return load_file(model_folder / "model.safetensors")


def trained_prompts(run_folder: Path) -> list[tuple[int, int, int]]:
    """(step, epoch, row) of every group that was trained on, from the run's samples."""
    found: set[tuple[int, int, int]] = set()
    for file in sorted((run_folder / "samples").glob("step_*.parquet")):
        rows: Sequence[dict[str, Any]] = pq.read_table(file, columns=["step", "epoch", "row"]).to_pylist()
        found |= {(row["step"], row["epoch"], row["row"]) for row in rows}
    return sorted(found)
