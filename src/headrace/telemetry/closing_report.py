"""What is said when a run has ended: what it achieved, at what price, and where things are."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headrace.telemetry.formatting import count, duration, facts_table, printable, share
from headrace.telemetry.shadow_table import shadow_table

_SHOWN_CHARACTERS = 400


def closing_report(summary: Mapping[str, Any], places: Mapping[str, Path]) -> RenderableType:
    """The report of a run.

    Args:
        summary: What `SummaryBuilder.summary()` gives.
        places: What is where, by a word a person knows it by.
    """
    parts: list[RenderableType] = [Text(), _headline(summary), Text(), facts_table(_facts(summary))]
    if "shadow" in summary:
        parts += [Text(), shadow_table(summary["shadow"])]
    for number, example in enumerate(summary["examples"], start=1):
        if example["after"] is not None:
            parts += [Text(), _example(number, example)]
    parts.append(Text())
    # Paths stay in one piece, to be copied.
    parts += [Text.assemble((f"{name:<12}", "dim"), str(path), no_wrap=True, overflow="ignore") for name, path in places.items()]
    return Group(*parts)


def _headline(summary: Mapping[str, Any]) -> Text:
    word, style = ("interrupted", "bold yellow") if summary["interrupted"] else ("finished", "bold green")
    return Text(f"{word} after {summary['steps']} steps in {duration(summary['wall_seconds'])}", style=style)


def _facts(summary: Mapping[str, Any]) -> Iterable[tuple[str, Text]]:
    yield "held-out", _held_out(summary)
    if (first := summary["reverse_kl_first"]) is not None:
        yield "reverse KL", Text(f"{first:.4f} nats a token to the teacher in the first step, {summary['reverse_kl_last']:.4f} in the last")
    yield "tokens", Text(f"{count(summary['tokens_generated'])} generated, {count(summary['tokens_trained'])} trained on")
    rates = (summary["tokens_per_second_generated"], summary["tokens_per_second_trained"])
    if None not in rates:
        yield "tokens/s", Text(f"{count(rates[0])} generated, {count(rates[1])} trained on")
        waited, idle = summary["trainer_wait_share"], summary["engine_wait_share"]
        yield "waiting", Text(f"trainer {share(waited)}, engine {share(idle)} of the time")
    yield "staleness", _staleness(summary)
    for name, trouble in _troubles(summary):
        yield name, Text(trouble, style="yellow")


def _held_out(summary: Mapping[str, Any]) -> Text:
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    if before is None:
        return Text("answered, but no reward scores the answers" if summary["evaluation_before"] else "no evaluation")
    if after is None:
        return Text(f"{before:.3f}, evaluated once")
    change = after - before
    style = "bold green" if change > 0 else "bold red" if change < 0 else "bold"
    return Text.assemble(f"{before:.3f} before, ", (f"{after:.3f}", style), f" after ({change:+.3f})")


def _staleness(summary: Mapping[str, Any]) -> Text:
    mean = summary["mean_staleness"]
    return Text(f"worst {summary['worst_staleness']}" + ("" if mean is None else f", mean {mean:.2f}"))


def _troubles(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if discarded := [f"{number} groups ({reason})" for reason, number in summary["ledger"].get("discarded", {}).items() if number]:
        yield "discarded", ", ".join(discarded)
    if failures := summary["reward_failures"]:
        yield "failed", f"the rewards of {failures} rollouts in trained groups"
    if skipped := summary["skipped_updates"]:
        yield "skipped", f"{skipped} updates: the loss or a gradient was not finite"


def _example(number: int, example: Mapping[str, Any]) -> RenderableType:
    rows = [("prompt", Text(_shown(example["prompt"]), style="cyan"))]
    rows += [(moment, _answer(example[moment])) for moment in ("before", "after")]
    return Group(Text(f"held-out example {number}", style="bold"), Padding(facts_table(rows), (0, 0, 0, 2)))


def _answer(answer: Mapping[str, Any]) -> Text:
    reward = answer["reward"]
    score = "not scored" if reward is None else f"reward {reward:.3g}"
    return Text.assemble((f"[{score}] ", "bold"), _shown(answer["completion"]))


def _shown(text: str) -> str:
    """A text short enough for the screen: its beginning and its end, where the answer is."""
    text = printable(text.strip())
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"
