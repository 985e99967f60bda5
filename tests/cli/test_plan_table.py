import io
from typing import Any

import pytest
from config.recipes import recipe_with
from rich.console import Console

from headrace.cli.plan_table import show_plan
from headrace.config.model_facts import ModelFacts
from headrace.config.plan import make_plan


def shown(*, terminal: bool, notes: list[str] | None = None, num_rows: int | None = None, **sections: dict[str, Any]) -> str:
    recipe = recipe_with(**sections)
    model = ModelFacts(
        num_parameters=2**28, num_layers=1, hidden_size=1, intermediate_size=1, num_kv_heads=1, head_dim=1, max_positions=None
    )
    output = io.StringIO()
    plan = make_plan(recipe, model=model, num_rows=num_rows)
    show_plan(plan, recipe, notes or [], Console(file=output, force_terminal=terminal, width=60))
    return output.getvalue()


def test_plain_lines_hold_one_item_each_however_long() -> None:
    small = {"max_concurrent_sequences": 32}
    lines = shown(terminal=False, notes=["[red]a note[/red] " + "x" * 200], engine=small).splitlines()
    assert lines[0] == "step               8 prompts · 8 generations = 64 completions"
    assert "worst staleness    1: no group is trained on later than 1 step after its admission" in lines
    assert "  weights          1.00 GiB = 268.4M parameters · 4 bytes" in lines
    assert lines[-2].startswith("warning            the engine decodes 32 sequences together")
    assert lines[-1] == "note               [red]a note[/red] " + "x" * 200


def test_what_is_left_out_and_compared_is_listed_where_anything_is() -> None:
    found = shown(terminal=False, algorithm={"name": "dapo"}, shadow={"algorithms": ["areal", "gspo"]})
    assert "\nrules              groups without signal are replaced, overlong buffer of 20%\n" in found
    assert "\ncompared with      areal, gspo\n" in found
    plain = shown(terminal=False)
    assert "rules " not in plain
    assert "compared with" not in plain


def test_nothing_that_bounds_staleness_is_said_to() -> None:
    assert "\nworst staleness    not bounded: " in shown(
        terminal=False, schedule={"type": "async", "order": "completion", "max_staleness": 2}
    )


@pytest.mark.parametrize(
    ("num_rows", "line"),
    [
        (None, "steps              until the prompts end"),
        (16, "steps              2 (1 epochs)"),
        (17, "steps              3, the last one with 1 of 8 prompts (1 epochs)"),
    ],
)
def test_steps_of_a_run_that_ends_with_its_prompts(num_rows: int | None, line: str) -> None:
    assert line in shown(terminal=False, num_rows=num_rows).splitlines()


def test_a_terminal_gets_a_table() -> None:
    text = shown(terminal=True)
    assert "┌" in text
    assert "worst staleness" in text
