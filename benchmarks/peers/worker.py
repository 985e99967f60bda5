"""What the decoding peers have in common: arguments, and the loop that answers a number of sequences with the seconds they took."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every worker; one may add its own."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", required=True)
    made.add_argument("--prompt-ids", type=int, nargs="+", required=True)
    made.add_argument("--new-tokens", type=int, required=True)
    made.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    return made


def private_stdout() -> TextIO:
    """The real stdout; what libraries print goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer_lines(generate: Callable[[int], None], facts: dict[str, object], answers: TextIO) -> None:
    """Say `facts`, which means ready; then for each line of stdin, a number of sequences, generate them and say the seconds."""
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        generate(int(line))
        print(json.dumps({"seconds": time.perf_counter() - start}), file=answers, flush=True)
