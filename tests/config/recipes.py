"""A valid recipe to vary in tests."""

from typing import Any

from headrace.config.recipe import Recipe


def recipe_with(**sections: dict[str, Any]) -> Recipe:
    """The smallest recipe with some sections' keys set."""
    table: dict[str, dict[str, Any]] = {
        "run": {"output_dir": "runs/x"},
        "model": {"name_or_path": "m"},
        "data": {"source": {"type": "file", "path": "a.jsonl"}},
    }
    for name, keys in sections.items():
        table[name] = table.get(name, {}) | keys
    return Recipe.model_validate(table)
