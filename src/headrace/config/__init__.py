"""What the user writes: a recipe, as frozen and closed models."""

from headrace.config.recipe import Recipe

__all__ = ["Recipe"]
