"""Peak memory of training steps in a process of its own: prints `{"groups": …, "peak_mib": …}`.

python benchmarks/training_memory.py --model DIR --groups 16 --token-budget 384
"""

import argparse
import json
from pathlib import Path

import headrace  # noqa: F401 - before torch, as it sets how OpenMP's threads wait

# isort: split
import torch
from grouped_samples import grouped_rows
from policy_trainers import accumulate, load_policy, policy_trainer

from headrace.telemetry.memory import peak_resident_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--token-budget", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_policy(arguments.model)
    trainer = policy_trainer(model, token_budget=arguments.token_budget, algorithm="a3po")
    rows = grouped_rows(groups=arguments.groups, rollouts=8, prompt_length=45, shortest=8, longest=32, vocabulary=model.config.vocab_size)
    # A short step first, as the optimizer's moments are there from the second on.
    for part in (rows[:1], rows):
        accumulate(trainer, part, token_budget=arguments.token_budget)
        trainer.step()
    print(json.dumps({"groups": arguments.groups, "peak_mib": round(peak_resident_bytes() / 2**20)}))


if __name__ == "__main__":
    main()
