"""Writes the measured part of docs/benchmarks.md, and its pictures, from a file of results.

python benchmarks/report.py [--results benchmarks/results/latest.json] [--page docs/benchmarks.md] [--images docs/images]
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from charts import draw_charts
from machine import ROOT
from run_all import RESULTS

BEGIN = "<!-- Measured: written by a script of benchmarks/ from here on. -->"
END = "<!-- Measured: up to here. -->"

Result = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args(argv)
    whole = json.loads(arguments.results.read_text(encoding="utf-8"))
    pictures = draw_charts(whole["benchmarks"], arguments.images)
    page = arguments.page.read_text(encoding="utf-8")
    arguments.page.write_text(with_measurements(page, "\n".join(measurements(whole, pictures))), encoding="utf-8")


def with_measurements(page: str, measured: str) -> str:
    """The page with the part between the marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"the page lacks the marks {BEGIN!r} and {END!r}"
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}"


def measurements(whole: Result, pictures: Mapping[str, str]) -> Iterator[str]:
    """Markdown, line by line."""
    yield machine_line(whole)
    yield "\n### Targets\n"
    yield from targets_table(whole["targets"])
    for name, (title, section) in SECTIONS.items():
        result = whole["benchmarks"].get(name)
        if result is None:
            continue
        yield f"\n### {title}\n"
        yield from [f"It failed: {result['error']}"] if "error" in result else section(result)
        if name in pictures:
            yield f"\n![{title}](images/{pictures[name]})"


def machine_line(whole: Result) -> str:
    machine = whole["machine"]
    state = " with changes" if machine["dirty"] else ""
    return (
        f"Measured until {whole['finished']} on {machine['cores']} cores of an {machine['processor']} with {machine['memory_gib']} GiB; "
        f"Python {machine['python']}, torch {machine['torch']}, transformers {machine['transformers']}; "
        f"commit {machine['commit'][:10]}{state}."
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|---" + "|---:" * (len(header) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def targets_table(targets: Sequence[Result]) -> Iterator[str]:
    outcome = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        (target["name"], f"{target['bound']} {target['wanted']:,g}", "—" if target["found"] is None else f"{target['found']:,g}",
         outcome[target["met"]])
        for target in targets
    ]  # fmt: skip
    yield from table(["target", "wanted", "measured", ""], rows)


def decode_section(result: Result) -> Iterator[str]:
    rates = result["tokens_per_second"]
    sequences = list(rates["headrace"])
    rows: list[list[str]] = [[name, *(f"{of_engine[number]:,.0f}" for number in sequences)] for name, of_engine in rates.items()]
    rows.append(["headrace's share of the linear products", *(f"{result['share_of_roof'][number]:.0%}" for number in sequences)])
    rows += [[f"headrace / {peer}", *(f"{ratio[number]:.2f}" for number in sequences)] for peer, ratio in result["ratios"].items()]
    yield from table(["tokens a second", *(f"{number} sequences" for number in sequences)], rows)


def training_section(result: Result) -> Iterator[str]:
    if "quickstart" in result and "prompts" in result:
        yield from throughput_table(result)
    if "proximal" in result:
        yield "\nSeconds of a step of two optimizer updates, by the proximal policy:\n"
        yield from table(["proximal policy", "seconds"], result["proximal"]["seconds_per_step"].items())
    if "memory" in result:
        yield f"\nPeak memory of a training process, {result['settings']['memory_token_budget']} tokens a pass:\n"
        yield from table(["groups a step", "MiB"], [(size["groups"], f"{size['peak_mib']:,}") for size in result["memory"]])
    if "publish" in result:
        yield "\nHanding new weights to the engine:\n"
        rows = [(name, f"{1000 * seconds:,.0f}") for name, seconds in result["publish"]["seconds_per_publish"].items()]
        yield from table(["", "ms"], [*rows, ("(publish − packing) / copy", result["publish"]["ratio_beyond_packing"])])


def throughput_table(result: Result) -> Iterator[str]:
    def row(name: str, section: Result) -> list[str]:
        rates = section["tokens_per_second"]
        predicted = section.get("predicted_ratio")
        return [
            name,
            f"{rates['headrace']:,.0f}",
            f"{rates['padded']:,.0f}",
            f"{section['ratio']:.2f}",
            "—" if predicted is None else f"{predicted:.2f}",
        ]

    rows = [row("8 groups, prompts of 45, completions of 8 to 32", result["quickstart"])]
    rows += [row(f"1 group, a prompt of {section['prompt']:,}, completions of 64", section) for section in result["prompts"]]
    yield from table(["completion tokens a second", "headrace", "padded loop", "ratio", "predicted by sharing alone"], rows)


def training_options_section(result: Result) -> Iterator[str]:
    if "shadow" in result:
        seconds, more = result["shadow"]["seconds_per_step"], result["shadow"]["more_time"]
        yield from table(
            ["a training step, by algorithms compared in it", *seconds],
            [["seconds", *seconds.values()], ["more time", *(f"{more[count]:.0%}" if count in more else "—" for count in seconds)]],
        )
    if "lora" in result:
        yield ""
        sides = {name: result["lora"][name] for name in ("seconds_per_step", "seconds_per_publish", "decoded_tokens_per_second")}
        yield from table(
            ["", *sides["seconds_per_step"]], [[name.replace("_", " ").capitalize(), *values.values()] for name, values in sides.items()]
        )


def schedules_section(result: Result) -> Iterator[str]:
    rows = [
        (schedule, found["seconds_per_step"], f"{found['tokens_per_second']:,.0f}", f"{found['trainer_wait_share']:.0%}",
         f"{found['engine_wait_share']:.0%}", f"{found['max_staleness']:.0f}")
        for schedule, found in result["schedules"].items()
    ]  # fmt: skip
    yield from table(["schedule", "s a step", "trained tokens/s", "trainer waits", "engine waits", "largest staleness"], rows)


def end_to_end_section(result: Result) -> Iterator[str]:
    rows = [
        (
            side,
            found["seconds_per_step"],
            found["completions_per_second"],
            f"{found['completion_tokens_per_second']:,.0f}",
            result["ratios_to_trl"].get(side, "1" if side == "trl" else "—"),
            f"{found['reward_first_steps']:.2f} → {found['reward_last_steps']:.2f}",
            "—" if found["accuracy"] is None else f"{found['accuracy']:.2f}",
            "—" if found["seconds_to_goal"] is None else f"{found['seconds_to_goal']:,.0f} s",
        )
        for side, found in result["sides"].items()
    ]
    yield from table(
        ["", "s a step", "completions/s", "tokens/s", "× TRL", "reward, first → last 5 steps", "accuracy after the last step", "until 0.9"],
        rows,
    )


def controller_section(result: Result) -> Iterator[str]:
    rows = [
        (f"{load['rollouts_a_group']} rollouts, sinks: {load['sinks']}", f"{load['groups_in_flight']:,.0f}",
         f"{load['groups_per_second']:,.0f}", f"{1e6 * load['cpu_seconds_per_group']:,.0f}")
        for load in result["controller"]
    ]  # fmt: skip
    yield from table(["load of one group", "groups in flight", "groups/s", "CPU µs a group"], rows)


SECTIONS = {
    "decode": ("Decoding", decode_section),
    "training": ("Training", training_section),
    "training_options": ("Shadow comparison and LoRA", training_options_section),
    "schedules": ("Schedules", schedules_section),
    "end_to_end": ("Whole runs beside TRL", end_to_end_section),
    "end_to_end_few_shot": ("Whole runs with 20 solved examples in each prompt", end_to_end_section),
    "controller": ("Controller", controller_section),
}


if __name__ == "__main__":
    main()
