"""Benchmarks that measure several things, each a section of the result."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from machine import machine_facts

Sections = Mapping[str, Callable[[argparse.Namespace], object]]


def section_parser(description: str | None, sections: Sections, *, runs: int) -> argparse.ArgumentParser:
    """The options that all of them have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--only", nargs="+", choices=tuple(sections), default=list(sections))
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser


def run_sections(benchmark: str, sections: Sections, arguments: argparse.Namespace, settings: Mapping[str, object]) -> None:
    """Measure, and print the result as one JSON object."""
    torch.set_num_threads(arguments.threads)
    result: dict[str, object] = {"benchmark": benchmark}
    for name in arguments.only:
        result[name] = sections[name](arguments)
        if not arguments.json:
            print(f"{name}: {json.dumps(result[name])}", flush=True)
    common = {"model": arguments.model.name, "runs": arguments.runs, "threads": arguments.threads}
    print(json.dumps(result | {"settings": {**common, **settings}, "machine": machine_facts()}))
