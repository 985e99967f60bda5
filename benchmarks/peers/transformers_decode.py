"""transformers' `generate` as a worker: reads a number of sequences a line, generates them, answers with the seconds as JSON.

    python transformers_decode.py --model DIR --prompt-ids 1 2 3 --new-tokens 64

It samples without returning log-probabilities, which `generate` would keep as the whole vocabulary's logits of every step.
"""

import argparse
from functools import partial

import torch
import transformers
from transformers import AutoModelForCausalLM
from worker import answer_lines, parser, private_stdout


def main() -> None:
    arguments = parse_arguments()
    answers = private_stdout()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).to(arguments.device).eval()
    # Nothing ends a completion early, and nothing has to be checked for it.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    generate(model, arguments, 2)
    answer_lines(partial(generate, model, arguments), {"transformers": transformers.__version__}, answers)


def parse_arguments() -> argparse.Namespace:
    own = parser(__doc__)
    own.add_argument("--device", default="cpu")
    own.add_argument("--threads", type=int, default=0)
    return own.parse_args()


@torch.inference_mode()
def generate(model, arguments: argparse.Namespace, sequences: int) -> None:
    prompts = torch.tensor([arguments.prompt_ids] * sequences, device=arguments.device)
    found = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=arguments.new_tokens, do_sample=True, temperature=1.0, top_k=0
    )
    assert found.shape[1] == len(arguments.prompt_ids) + arguments.new_tokens, found.shape


if __name__ == "__main__":
    main()
