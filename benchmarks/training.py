"""Training throughput, step time, memory and publishing of headrace's trainer, beside the plain way with transformers.

    python benchmarks/training.py --model DIR [--only quickstart prompts proximal memory publish] [--json]

quickstart  forward and backward pass of 8 groups of 8 short completions, against a padded loop on the same samples
prompts     the same for one group behind prompts of several lengths, beside what the cost model predicts
proximal    seconds of a step with two optimizer updates, for each choice of the proximal policy
memory      peak memory of a process as the batch grows while the token budget stays
publish     handing the trainer's weights to the engine, against copying them

Weights are float32, arithmetic is bfloat16 by autocast. The last line of the output is one JSON object.
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import headrace  # noqa: F401 - before torch, as it sets how OpenMP's threads wait

# isort: split
import torch
from grouped_samples import QUICKSTART, grouped_rows, num_loss_tokens
from interleaving import interleaved, medians, rounded, timed
from linear_products import product_shapes
from padded_loop import accumulate_padded
from policy_trainers import AUTOCAST, TOKEN_BUDGET, accumulate, load_policy, policy_trainer
from prompt_sharing import model_cost, predicted_speedup
from publishing import publishing
from sections import Sections, run_sections, section_parser
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from headrace.config.named_algorithms import AlgorithmName
from headrace.rollout.linears import PackedLinear, packs_bfloat16
from headrace.training.policy_trainer import PolicyTrainer
from headrace.types import SharedPromptRow

ROLLOUTS = 8
COMPLETION = 64
"""Tokens of each completion behind the longer prompts."""
MINIBATCHES = 2
"""With a single update a step, `recompute` has nothing to recompute: the proximal policy is the present one."""
PUBLISHES = 25
"""Turns: a short measurement, of which one number is taken from another."""
PROXIMALS: dict[str, AlgorithmName] = {"behaviour": "grpo", "recompute": "areal", "loglinear": "a3po"}
"""The algorithm that has each choice of the proximal policy."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = section_parser(__doc__, SECTIONS, runs=3)
    parser.add_argument("--token-budget", type=int, default=TOKEN_BUDGET, help="tokens of a pass, padding included, on both sides")
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[50, 500, 2000])
    parser.add_argument("--memory-groups", type=int, nargs="+", default=[16, 32, 64], help="enough for a full micro-batch")
    parser.add_argument("--memory-token-budget", type=int, default=384)
    arguments = parser.parse_args(argv)
    settings = {
        "token_budget": arguments.token_budget,
        "memory_token_budget": arguments.memory_token_budget,
        "quickstart": QUICKSTART,
        "completion": COMPLETION,
        "rollouts": ROLLOUTS,
        "minibatches": MINIBATCHES,
    }
    run_sections("training", SECTIONS, arguments, settings)


def measure_quickstart(arguments: argparse.Namespace) -> dict[str, object]:
    sides = Sides(arguments)
    return sides.compare(grouped_rows(**QUICKSTART, vocabulary=sides.vocabulary), runs=arguments.runs)


def measure_prompts(arguments: argparse.Namespace) -> list[dict[str, object]]:
    sides = Sides(arguments)
    cost = model_cost(sides.plain)
    results = []
    for prompt in arguments.prompt_lengths:
        rows = grouped_rows(
            groups=1, rollouts=ROLLOUTS, prompt_length=prompt, shortest=COMPLETION, longest=COMPLETION, vocabulary=sides.vocabulary
        )
        predicted = predicted_speedup(cost, prompt=prompt, completion=COMPLETION, completions=ROLLOUTS)
        measured = sides.compare(rows, runs=arguments.runs)
        results.append({"prompt": prompt, "predicted_ratio": rounded(predicted), **measured})
    return results


class Sides:
    """The same policy twice: in headrace's trainer, and as a plain model."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.plain = load_policy(arguments.model)
        self.vocabulary: int = self.plain.config.vocab_size
        self._token_budget: int = arguments.token_budget
        self._trainer = policy_trainer(copy.deepcopy(self.plain), token_budget=self._token_budget)

    def compare(self, rows: Sequence[SharedPromptRow], *, runs: int) -> dict[str, object]:
        """Completion tokens per second of the forward and backward passes, gradients dropped afterwards."""
        candidates = {"headrace": lambda: self._headrace_seconds(rows), "padded": lambda: self._padded_seconds(rows)}
        seconds = interleaved(candidates, runs=runs)
        rates = {name: rounded(num_loss_tokens(rows) / value) for name, value in medians(seconds).items()}
        return {"tokens_per_second": rates, "ratio": rounded(rates["headrace"] / rates["padded"]), "seconds": seconds}

    def _headrace_seconds(self, rows: Sequence[SharedPromptRow]) -> float:
        seconds = timed(lambda: accumulate(self._trainer, rows, token_budget=self._token_budget))
        self._trainer.resume_at(self._trainer.version)
        return seconds

    def _padded_seconds(self, rows: Sequence[SharedPromptRow]) -> float:
        seconds = timed(lambda: accumulate_padded(self.plain, rows, token_budget=self._token_budget, autocast_dtype=AUTOCAST))
        self.plain.zero_grad(set_to_none=True)
        return seconds


def measure_proximal(arguments: argparse.Namespace) -> dict[str, object]:
    """Seconds of a whole step: forward and backward passes and the optimizer's updates."""
    model = load_policy(arguments.model)
    rows = grouped_rows(**QUICKSTART, vocabulary=model.config.vocab_size)

    def step_of(trainer: PolicyTrainer) -> Callable[[], float]:
        def step() -> None:
            accumulate(trainer, rows, token_budget=arguments.token_budget, num_minibatches=MINIBATCHES)
            trainer.step()

        return lambda: timed(step)

    steps = {
        name: step_of(
            policy_trainer(copy.deepcopy(model), token_budget=arguments.token_budget, algorithm=algorithm, num_minibatches=MINIBATCHES)
        )
        for name, algorithm in PROXIMALS.items()
    }
    seconds = interleaved(steps, runs=arguments.runs)
    return {"seconds_per_step": {name: rounded(value) for name, value in medians(seconds).items()}, "seconds": seconds}


def measure_memory(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Each size in a process of its own, as memory that was once taken counts for ever."""
    script = str(Path(__file__).with_name("training_memory.py"))
    fixed = ["--model", str(arguments.model), "--token-budget", str(arguments.memory_token_budget), "--threads", str(arguments.threads)]

    def measured(groups: int) -> dict[str, object]:
        command = [sys.executable, script, *fixed, "--groups", str(groups)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        return json.loads(found.stdout.splitlines()[-1])

    return [measured(groups) for groups in arguments.memory_groups]


def measure_publish(arguments: argparse.Namespace) -> dict[str, object]:
    """Seconds of publishing, of copying every weight to the engine's type, and of packing the engine's linear layers alone."""
    model = load_policy(arguments.model)
    copy_weights, pack = weight_copy(model), packing(model)
    with publishing(model, tokenizer=AutoTokenizer.from_pretrained(arguments.model), threads=arguments.threads) as publish:
        candidates = {"publish": publish, "copy": lambda: timed(copy_weights), "packing": lambda: timed(pack)}
        seconds = interleaved(candidates, runs=PUBLISHES)
    # Of each turn, as the machine's speed changes from turn to turn.
    ratios = [(published - packed) / copying for published, copying, packed in zip(*(seconds[name] for name in candidates), strict=True)]
    middle = {name: rounded(value) for name, value in medians(seconds).items()}
    return {"seconds_per_publish": middle, "ratio_beyond_packing": rounded(statistics.median(ratios)), "seconds": seconds}


def weight_copy(model: PreTrainedModel) -> Callable[[], None]:
    pairs = [(torch.empty_like(weight, dtype=AUTOCAST), weight.detach().clone()) for weight in model.parameters()]

    def copy_all() -> None:
        for target, source in pairs:
            target.copy_(source)

    return copy_all


def packing(model: PreTrainedModel) -> Callable[[], None]:
    """Bring every linear layer's weight from the engine's type into oneDNN's layout, where this CPU's engine does."""
    linears = [nn.Linear(wide, out, bias=False, dtype=AUTOCAST) for wide, out in product_shapes(model) if packs_bfloat16()]
    packed = [PackedLinear([linear]) for linear in linears]

    def pack_all() -> None:
        for layer, linear in zip(packed, linears, strict=True):
            layer.load([linear.weight], [])

    return pack_all


SECTIONS: Sections = {
    "quickstart": measure_quickstart,
    "prompts": measure_prompts,
    "proximal": measure_proximal,
    "memory": measure_memory,
    "publish": measure_publish,
}


if __name__ == "__main__":
    main()
