"""vLLM as a worker: reads a number of sequences a line, generates them, answers with the seconds as JSON.

    python vllm_decode.py --model DIR --prompt-ids 1 2 3 --new-tokens 64 --max-sequences 64 [--eager]

Runs in an environment with vLLM, without headrace. The first line it prints says that it is ready.
"""

import argparse
import os
from collections.abc import Callable

from worker import answer_lines, parser, private_stdout


def main() -> None:
    arguments = parse_arguments()
    answers = private_stdout()
    generate, facts = load(arguments)
    generate(min(8, arguments.max_sequences))
    answer_lines(generate, facts, answers)


def parse_arguments() -> argparse.Namespace:
    own = parser(__doc__)
    own.add_argument("--max-sequences", type=int, required=True)
    own.add_argument("--eager", action="store_true", help="without compilation: starts in seconds instead of minutes")
    return own.parse_args()


def load(arguments: argparse.Namespace) -> tuple[Callable[[int], None], dict[str, object]]:
    # In GiB; vLLM's own choice takes half of the machine's memory.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm

    length = len(arguments.prompt_ids) + arguments.new_tokens
    engine = vllm.LLM(
        arguments.model,
        dtype=arguments.dtype,
        max_model_len=length,
        max_num_seqs=arguments.max_sequences,
        enforce_eager=arguments.eager,
    )
    sampling = vllm.SamplingParams(max_tokens=arguments.new_tokens, ignore_eos=True, temperature=1.0, logprobs=0)

    def generate(sequences: int) -> None:
        prompts = [{"prompt_token_ids": arguments.prompt_ids}] * sequences
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == arguments.new_tokens for output in outputs)

    return generate, {"vllm": vllm.__version__, "eager": arguments.eager}


if __name__ == "__main__":
    main()
