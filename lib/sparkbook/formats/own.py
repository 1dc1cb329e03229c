"""The playbook's own recipe file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.formats.conversion import Conversion
from sparkbook.util.documents import dump, parse

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe


def read(text: str) -> Conversion:
    """Return the recipe in a text; `extends` names a recipe of the catalogue.

    Raises:
        SparkbookError: it is no valid recipe.
    """
    from sparkbook.recipes import catalogue

    data = parse(text)
    if not isinstance(data, dict):
        raise SparkbookError("this is not a recipe: it holds no mapping of recipe keys")
    return Conversion("recipe", catalogue.validate(data, "this text"), Findings(), text)


def write(recipe: Recipe) -> str:
    """Return the recipe as a file, everything that it extends merged in."""
    return dump(recipe.model_dump(mode="json", exclude_defaults=True))
