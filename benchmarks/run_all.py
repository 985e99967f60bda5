"""Runs every benchmark and writes one file of results.

    python benchmarks/run_all.py [--model NAME_OR_DIR] [--trl-python PATH] [--vllm-python PATH] [--only decode training ...]

A peer whose Python is not given is left out. A benchmark that fails is recorded with its error, the others go on, and the exit code is 1.
`benchmarks/report.py` makes docs/benchmarks.md of the results.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from machine import load_average, machine_facts
from targets import check_targets

from headrace.launch.model_store import resolve

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
SECONDS_A_BENCHMARK = 3 * 3600


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    model = str(resolve(arguments.model))
    planned = commands(model, arguments)
    results = kept_results(arguments)
    names = arguments.only or list(planned)
    for number, name in enumerate(names, 1):
        print(f"\n== {name} ({number} of {len(names)}), {time.strftime('%H:%M')}", flush=True)
        results[name] = run_benchmark(planned[name])
        # After each, so that what comes later can lose nothing.
        write_results(results, arguments.results)
    show_targets(results)
    sys.exit(1 if any("error" in results[name] for name in names) else 0)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = ("controller", "decode", "training", "training_options", "schedules", "end_to_end", "end_to_end_few_shot")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="a packaged model, or a Hugging Face model folder")
    parser.add_argument("--trl-python", help="Python of an environment with TRL")
    parser.add_argument("--vllm-python", help="Python of an environment with vLLM")
    parser.add_argument("--decode-runs", type=int, default=3, help="how often the decoding engines take turns")
    parser.add_argument("--steps", type=int, default=10, help="training steps of both sides of the end-to-end benchmark")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each side of the end-to-end benchmark, each with a seed of its own")
    parser.add_argument("--few-shot-steps", type=int, default=3, help="training steps of both sides on the longer prompts")
    parser.add_argument("--only", nargs="+", choices=names, help="run these; the file keeps the others' results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(argv)


def kept_results(arguments: argparse.Namespace) -> dict[str, dict[str, object]]:
    """With --only, the results that the others left before."""
    if not arguments.only or not arguments.results.is_file():
        return {}
    return json.loads(arguments.results.read_text(encoding="utf-8"))["benchmarks"]


def commands(model: str, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """What to run, by the name that its result gets."""
    modes = ["--peer", "vllm", "--peer", "vllm-defaults"]
    vllm = [*modes, "--peer-python", arguments.vllm_python] if arguments.vllm_python else []
    trl = ["--peer", "trl", "--peer-python", arguments.trl_python] if arguments.trl_python else []
    runs = ["--steps", str(arguments.steps), "--repeats", str(arguments.seeds)]
    few_shot = ["--schedules", "async", "--few-shot", "20", "--steps", str(arguments.few_shot_steps), "--evaluation-rollouts", "0"]
    return {
        "controller": [script("controller")],
        "decode": [script("decode"), "--model", model, "--runs", str(arguments.decode_runs), "--peer", "transformers", *vllm],
        "training": [script("training"), "--model", model, "--runs", "2"],
        "training_options": [script("training_options"), "--model", model],
        "schedules": [script("schedules"), "--model", model],
        "end_to_end": [script("end_to_end"), "--model", model, *runs, *trl],
        "end_to_end_few_shot": [script("end_to_end"), "--model", model, *few_shot, *trl],
    }


def script(name: str) -> str:
    return str(HERE / f"{name}.py")


def run_benchmark(command: Sequence[str]) -> dict[str, object]:
    """The object that it printed last, or its error; what it prints before is shown as it comes."""
    before, start = load_average(), time.perf_counter()
    result = result_of(command)
    return result | {"wall_seconds": round(time.perf_counter() - start), "load_average_before": before}


def result_of(command: Sequence[str]) -> dict[str, object]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    limit = threading.Timer(SECONDS_A_BENCHMARK, process.kill)
    limit.start()
    last = ""
    with process.stdout as lines:
        for line in lines:
            if not line.startswith("{"):
                print(line, end="", flush=True)
            last = line.strip() or last
    code = process.wait()
    limit.cancel()
    if code:
        return {"error": f"{Path(command[0]).name} ended with exit code {code} (it is killed after {SECONDS_A_BENCHMARK} s)"}
    return json.loads(last)


def write_results(results: Mapping[str, dict[str, object]], path: Path) -> None:
    """Everything in one file: machine, numbers, targets and whether they are met."""
    whole = {
        "finished": time.strftime("%Y-%m-%d %H:%M"),
        "machine": machine_facts(),
        "targets": check_targets(results),
        "benchmarks": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"results so far: {path}", flush=True)


def show_targets(results: Mapping[str, dict[str, object]]) -> None:
    for target in check_targets(results):
        outcome = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
        print(f"{outcome:>12}  {target['name']}: {target['found']} ({target['bound']} {target['wanted']:g})")


if __name__ == "__main__":
    main()
