"""Recipes: what is known about serving each model, and what is started.

>>> from sparkbook import recipes
>>> recipes.load("gpt-oss-120b").model.repo
'openai/gpt-oss-120b'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkbook.recipes.catalogue import RecipeError, all, ids, json_schema, load
    from sparkbook.recipes.launch import Container, Launch, Serve
    from sparkbook.recipes.names import entrypoint_of
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


_MODULES = {
    "Container": "launch",
    "Launch": "launch",
    "Recipe": "schema",
    "Serve": "launch",
    "entrypoint_of": "names",
}
"""The module of each name that is not in `catalogue`."""


def __getattr__(name: str) -> Any:
    """Load a module when one of its names is first asked for: a command that judges a launch line
    needs neither the catalogue nor pydantic.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'catalogue')}")
    return getattr(module, name)
