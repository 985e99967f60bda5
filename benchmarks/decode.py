"""Decode throughput of the embedded engine, alone or side by side with its peers.

    python benchmarks/decode.py --model DIR [--sequences 8 32 64] [--peer transformers] [--peer vllm --peer-python PATH] [--json]

N rollouts of one short prompt, 64 new tokens each, drawn at temperature 1 with log-probabilities. Engines take turns, so that all
meet the same machine. `linear products` are the model's matrix products alone: the roof of every decoder of this precision.
Peers: transformers' `generate`; vllm compiled and vllm-eager, both on all cores; vllm-defaults, compiled, on the cores that it chooses.
The last line of the output is one JSON object.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import headrace  # noqa: F401 - before torch, as it sets how OpenMP's threads wait

# isort: split
import torch
from embedded import embedded_engine
from interleaving import interleaved, medians, rounded, timed
from linear_products import linear_products, seconds_of_steps
from machine import machine_facts
from peer_process import PeerProcess
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headrace.types import GenerationRequest, Sampling

PROMPT = "What is 3 + 4? Answer with just the number."
NEW_TOKENS = 64
ROOF = "linear products"
PEERS = Path(__file__).parent / "peers"

Engine = Callable[[int], float]
"""Takes a number of sequences, generates them, returns the seconds."""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    with ExitStack() as stack:
        engines, peers = open_engines(arguments, stack)
        runs = measure(engines, arguments)
    result = summarize(runs, peers, arguments)
    if not arguments.json:
        show(result)
    print(json.dumps(result))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peer", choices=("transformers", "vllm", "vllm-eager", "vllm-defaults"), action="append", default=[])
    parser.add_argument("--peer-python", type=Path, help="Python of an environment with vLLM, for the vllm peers")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args(argv)
    if arguments.peer_python is None and any(peer.startswith("vllm") for peer in arguments.peer):
        parser.error("vLLM lives in an environment of its own: give its Python as --peer-python (make .venv-vllm/installed makes one)")
    return arguments


def open_engines(arguments: argparse.Namespace, stack: ExitStack) -> tuple[dict[str, Engine], dict[str, object]]:
    """Load headrace, the roof and the peers; also what the peers say of themselves."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    prompt_ids = tokenize(tokenizer)
    model = load(arguments)
    step = linear_products(model)
    engines: dict[str, Engine] = {
        "headrace": stack.enter_context(
            decoding(model, tokenizer, prompt_ids, max_sequences=max(arguments.sequences), threads=arguments.threads)
        ),
        ROOF: lambda sequences: seconds_of_steps(step, sequences, NEW_TOKENS),
    }
    facts: dict[str, object] = {}
    for peer in arguments.peer:
        process = stack.enter_context(closing(start_peer(peer, arguments, prompt_ids)))
        engines[peer] = lambda sequences, process=process: process.ask(sequences)["seconds"]
        facts[peer] = process.facts
    return engines, facts


def tokenize(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer(PROMPT)["input_ids"]
    messages = [{"role": "user", "content": PROMPT}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def load(arguments: argparse.Namespace) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).to(arguments.device).eval()


@contextmanager
def decoding(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], *, max_sequences: int, threads: int
) -> Iterator[Engine]:
    """headrace's engine, which takes the model over."""
    length = len(prompt_ids) + NEW_TOKENS
    engine = embedded_engine(model, tokenizer=tokenizer, sequences=max_sequences, sequence_length=length, threads=threads)
    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_completion_length=NEW_TOKENS)
    with asyncio.Runner() as runner:

        def generate(sequences: int) -> None:
            request = GenerationRequest(prompt_ids=tuple(prompt_ids), num_rollouts=sequences, sampling=sampling, seed=time.time_ns())
            rollouts = runner.run(engine.generate(request))
            assert all(len(rollout.completion_ids) == NEW_TOKENS for rollout in rollouts)

        try:
            yield lambda sequences: timed(lambda: generate(sequences))
        finally:
            runner.run(engine.close())


def start_peer(peer: str, arguments: argparse.Namespace, prompt_ids: Sequence[int]) -> PeerProcess:
    command = peer_command(peer, arguments, prompt_ids)
    environment = fastest_vllm(arguments.peer_python) if peer in ("vllm", "vllm-eager") else {}
    return PeerProcess(peer, command, start_seconds=900, answer_seconds=600, environment=environment)


def peer_command(peer: str, arguments: argparse.Namespace, prompt_ids: Sequence[int]) -> list[str]:
    task = ["--model", str(arguments.model), "--prompt-ids", *map(str, prompt_ids), "--new-tokens", str(NEW_TOKENS)]
    task += ["--dtype", arguments.dtype]
    if peer == "transformers":
        task += ["--device", arguments.device, "--threads", str(arguments.threads)]
        return [sys.executable, str(PEERS / "transformers_decode.py"), *task]
    task += ["--max-sequences", str(max(arguments.sequences)), *(["--eager"] if peer == "vllm-eager" else [])]
    return [str(arguments.peer_python), str(PEERS / "vllm_decode.py"), *task]


def fastest_vllm(python: Path) -> dict[str, str]:
    """All cores, of which vLLM by default leaves one to its scheduler, and the OpenMP library that it recommends, where it is installed."""
    library = python.absolute().parents[1] / "lib" / "libiomp5.so"
    preloaded = {"LD_PRELOAD": str(library)} if library.exists() else {}
    return {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", **preloaded}


def measure(engines: Mapping[str, Engine], arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Tokens per second of every run, by engine and number of sequences."""
    rates: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    for sequences in arguments.sequences:
        candidates = {name: partial(tokens_per_second, engine, sequences) for name, engine in engines.items()}
        for name, values in interleaved(candidates, runs=arguments.runs).items():
            rates[name][str(sequences)] = values
    return rates


def tokens_per_second(engine: Engine, sequences: int) -> float:
    return rounded(sequences * NEW_TOKENS / engine(sequences))


def summarize(
    runs: Mapping[str, Mapping[str, list[float]]], peers: Mapping[str, object], arguments: argparse.Namespace
) -> dict[str, object]:
    rates = {name: medians(of_engine) for name, of_engine in runs.items()}
    own = rates["headrace"]

    def ratios(name: str) -> dict[str, float]:
        return {sequences: rounded(own[sequences] / rate) for sequences, rate in rates[name].items()}

    return {
        "benchmark": "decode",
        "tokens_per_second": rates,
        "share_of_roof": ratios(ROOF),
        "ratios": {peer: ratios(peer) for peer in arguments.peer},
        "runs": runs,
        "peers": peers,
        "settings": {
            "model": arguments.model.name,
            "new_tokens": NEW_TOKENS,
            "dtype": arguments.dtype,
            "device": torch.cuda.get_device_name(arguments.device) if arguments.device.startswith("cuda") else "cpu",
            "threads": arguments.threads,
        },
        "machine": machine_facts(),
    }


def show(result: Mapping[str, object]) -> None:
    rates, shares, ratios = result["tokens_per_second"], result["share_of_roof"], result["ratios"]
    for name, of_engine in rates.items():
        for sequences, rate in of_engine.items():
            values = result["runs"][name][sequences]
            compared = f"headrace / {name} = {ratios[name][sequences]:.2f}" if name in ratios else ""
            if name == ROOF:
                compared = f"headrace reaches {100 * shares[sequences]:.0f} %"
            print(f"{name:>16} {sequences:>4} sequences: {rate:8.1f} tokens/s ({min(values)} to {max(values)})  {compared}")


if __name__ == "__main__":
    main()
