"""From a recipe to running parts: the only place that sees the whole recipe."""
