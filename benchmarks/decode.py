"""Decode throughput of the embedded engine, alone or side by side with `transformers` `generate`.

    python benchmarks/decode.py --model DIR [--sequences 8 32 64] [--peer transformers] [--json]

N rollouts of one short prompt, 64 new tokens each, drawn at temperature 1 with log-probabilities. With a peer, runs
alternate, so that both meet the same machine. The last line of the output is one JSON object.
"""

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headrace.rollout.embedded_engine import EmbeddedEngine
from headrace.types import GenerationRequest, Sampling

PROMPT = "What is 3 + 4? Answer with just the number."
NEW_TOKENS = 64


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    prompt_ids = tokenize(tokenizer)
    with asyncio.Runner() as runner:
        engines = {"headrace": headrace(arguments, runner, tokenizer, prompt_ids)}
        if arguments.peer == "transformers":
            engines["transformers"] = transformers_generate(arguments, prompt_ids)
        rates = {
            name: {str(sequences): values for sequences, values in rates.items()}
            for name, rates in measure(engines, arguments.sequences, arguments.runs).items()
        }
    if not arguments.json:
        show(rates)
    print(json.dumps({"tokens_per_second": medians(rates), "runs": rates, "new_tokens": NEW_TOKENS, **facts(arguments)}))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peer", choices=("transformers",))
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


def tokenize(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer(PROMPT)["input_ids"]
    messages = [{"role": "user", "content": PROMPT}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def load(arguments: argparse.Namespace) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).to(arguments.device).eval()


def headrace(
    arguments: argparse.Namespace, runner: asyncio.Runner, tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int]
) -> Callable[[int], None]:
    engine = EmbeddedEngine(
        load(arguments),
        tokenizer=tokenizer,
        stop_token_ids=(),
        max_concurrent_sequences=max(arguments.sequences),
        max_sequence_length=len(prompt_ids) + NEW_TOKENS,
        interruption="recompute",
        threads=arguments.threads,
        stall_seconds=600,
    )
    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_completion_length=NEW_TOKENS)

    def run(sequences: int) -> None:
        request = GenerationRequest(prompt_ids=tuple(prompt_ids), num_rollouts=sequences, sampling=sampling, seed=time.time_ns())
        rollouts = runner.run(engine.generate(request))
        assert all(len(rollout.completion_ids) == NEW_TOKENS for rollout in rollouts)

    return run


def transformers_generate(arguments: argparse.Namespace, prompt_ids: list[int]) -> Callable[[int], None]:
    model = load(arguments)

    def run(sequences: int) -> None:
        batch = torch.tensor([prompt_ids] * sequences, device=arguments.device)
        with torch.inference_mode():
            found = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=True,
                top_k=0,
            )
        assert found.shape[1] == len(prompt_ids) + NEW_TOKENS

    return run


def measure(engines: dict[str, Callable[[int], None]], sequences: list[int], runs: int) -> dict[str, dict[int, list[float]]]:
    """Tokens per second of every run, after one run of each engine to warm up."""
    for run in engines.values():
        run(sequences[0])
    rates: dict[str, dict[int, list[float]]] = {name: {number: [] for number in sequences} for name in engines}
    for number in sequences:
        for _ in range(runs):
            for name, run in engines.items():
                start = time.perf_counter()
                run(number)
                rates[name][number].append(round(number * NEW_TOKENS / (time.perf_counter() - start), 1))
    return rates


def medians(rates: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {name: {number: statistics.median(values) for number, values in of_engine.items()} for name, of_engine in rates.items()}


def show(rates: dict[str, dict[str, list[float]]]) -> None:
    for name, of_engine in rates.items():
        for number, values in of_engine.items():
            middle = statistics.median(values)
            print(f"{name:>14} {number:>4} sequences: {middle:8.1f} tokens/s (of {len(values)} runs {min(values)} to {max(values)})")


def facts(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "model": str(arguments.model),
        "dtype": arguments.dtype,
        "device": torch.cuda.get_device_name(arguments.device) if arguments.device.startswith("cuda") else processor(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """The processor's name; `platform.processor` is empty on most Linux systems."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
