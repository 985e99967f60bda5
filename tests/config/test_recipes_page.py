"""docs/recipes.md says what the models say."""

import runpy
from pathlib import Path

from headrace.config.problems import keys_named
from headrace.config.recipe import Recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "generate_recipes.py"))["page"]()
    assert (DOCS / "recipes.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_the_page_has_every_key_with_a_description() -> None:
    rows = [line for line in (DOCS / "recipes.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    described = {line.split("`")[1] for line in rows if line.rsplit("|", 2)[1].strip()}
    sections = set(Recipe.model_fields)
    names = {field for section in sections for key in described if key.startswith(section) for field in [key.rpartition(".")[2]]}
    assert {key for name in names for key in keys_named(name) if not key.endswith(".type") and key not in sections} == described
    assert len(described) > 60
