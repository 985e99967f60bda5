"""TRL's GRPOTrainer on rows of a file: prints its versions, and a JSON line for each step with the seconds since training began.

    python trl_grpo.py --rows rows.jsonl --trained DIR --settings '{"model": "DIR", "steps": 20, ...}'

Runs in an environment with TRL, without headrace. Rows are `{"prompt": [messages], "answer": "12"}`; a completion is
rewarded when the last number in it is the answer. The trained model is saved in `--trained`.
"""

import argparse
import json
import re
import sys
import tempfile
import time

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from worker import private_stdout

NUMBER = re.compile(r"-?\d+")


def main() -> None:
    arguments = parse_arguments()
    answers = private_stdout()
    settings = json.loads(arguments.settings)
    with open(arguments.rows, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    tokenizer = AutoTokenizer.from_pretrained(settings["model"], padding_side="left")
    steps = StepLog()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32),
            processing_class=tokenizer,
            reward_funcs=last_number_is_right,
            args=grpo_config(settings, folder),
            train_dataset=Dataset.from_list(rows),
            callbacks=[steps],
        )
        trainer.train()
    trainer.model.save_pretrained(arguments.trained)
    tokenizer.save_pretrained(arguments.trained)
    print(json.dumps({"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}), file=answers)
    for row in step_rows(steps.times, trainer.state.log_history):
        print(json.dumps(row), file=answers, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--trained", required=True)
    parser.add_argument("--settings", required=True, help="JSON: the numbers that both sides train with")
    return parser.parse_args()


def grpo_config(settings: dict, folder: str) -> GRPOConfig:
    """A step's completions are generated at once, by one policy, whatever the number of passes: `steps_per_generation` follows them."""
    rows_per_pass = settings["rows_per_pass"]
    return GRPOConfig(
        output_dir=folder,
        max_steps=settings["steps"],
        per_device_train_batch_size=rows_per_pass,
        gradient_accumulation_steps=settings["prompts_per_step"] * settings["num_generations"] // rows_per_pass,
        num_generations=settings["num_generations"],
        max_completion_length=settings["max_completion_length"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        seed=settings["seed"],
        use_cpu=not torch.cuda.is_available(),
        bf16=settings["trl_precision"] == "bfloat16",
        # Slower, and memory is not short.
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def last_number_is_right(completions: list, answer: list, **_: object) -> list[float]:
    found = [NUMBER.findall(completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and int(numbers[-1]) == int(right)) for numbers, right in zip(found, answer, strict=True)]


class StepLog(TrainerCallback):
    """Seconds since training began at the start and at the end of each step."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.began = time.perf_counter()

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.step_began = time.perf_counter() - self.began

    def on_step_end(self, *_: object, **__: object) -> None:
        self.times.append((self.step_began, time.perf_counter() - self.began))
        print(f"step {len(self.times)} done after {self.times[-1][1]:.0f} s", file=sys.stderr, flush=True)


def step_rows(times: list, history: list) -> list[dict[str, float]]:
    logged = [row for row in history if "reward" in row]
    return [
        {"time": ended, "seconds": ended - began, "reward": row["reward"], "mean_length": row["completions/mean_length"]}
        for (began, ended), row in zip(times, logged, strict=True)
    ]


if __name__ == "__main__":
    main()
