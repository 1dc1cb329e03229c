"""Recipes: what is known about serving each model, and what is started.

>>> from sparkbook import recipes
>>> recipes.load("gpt-oss-120b").model.repo
'openai/gpt-oss-120b'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkbook.recipes.launch import Container, Launch, Serve, entrypoint_of

if TYPE_CHECKING:
    from sparkbook.recipes.catalogue import RecipeError, all, ids, json_schema, load
    from sparkbook.recipes.schema import Recipe

__all__ = [
    "Container",
    "Launch",
    "Recipe",
    "RecipeError",
    "Serve",
    "all",
    "entrypoint_of",
    "ids",
    "json_schema",
    "load",
]


def __getattr__(name: str) -> Any:
    """Loads the catalogue and the schema when they are first asked for: a command that only judges
    a launch line needs neither.
    """
    if name == "Recipe":
        from sparkbook.recipes.schema import Recipe

        return Recipe
    if name in __all__:
        from sparkbook.recipes import catalogue

        return getattr(catalogue, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
