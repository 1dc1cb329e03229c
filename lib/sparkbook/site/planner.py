"""The planner in a page: the form whose answer is the command's, `sparkbook plan`, run in the
reader's browser (`packed`). `_static/planner.js` makes the form of the data here.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from sparkbook import releases
from sparkbook.plan.kv import KV_WIDTH
from sparkbook.site import chooser
from sparkbook.util.shell_text import command_line

MARK = "<!-- planner -->"
"""In a cell of a chapter: the planner stands here on the site."""


def data(ids: Iterable[str], size: int, first: str | None = None) -> dict[str, Any]:
    """Return what the form offers.

    Args:
        ids: recipes; those of the book's own engine are left out.
        size: bytes that are loaded on the first run.
        first: the recipe to begin with; the only one to choose where the page is its own.
    """
    found = [
        {"id": recipe.id, "title": recipe.title, "family": recipe.family}
        for recipe in chooser.chosen(ids)
    ]
    return {
        "recipes": found,
        "first": first or chooser.FIRST,
        "size": size,
        "kv": list(KV_WIDTH),
        "releases": releases.known()[::-1],
    }


def block(known: dict[str, Any]) -> str:
    """Return the planner as a cell's text: its data, from which the script makes the form, and what
    stands there without scripts.
    """
    text = json.dumps(known, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    line = html.escape(command_line("sparkbook", "plan", known["first"]))
    return (
        f'<div class="sb-planner"><script type="application/json">{text}</script><noscript><p>The'
        f" planner needs JavaScript. Without it, run <code>{line}</code> where sparkbook is"
        " installed.</p></noscript></div>"
    )


def place(notebook: dict[str, Any], ids: Iterable[str], size: int, recipe: str | None) -> None:
    """Put the planner where a page has its mark; on a recipe's page it offers that recipe.

    Args:
        notebook: the page's, changed in place.
        ids: the book's recipes.
        size: bytes that a first run loads.
        recipe: whose page it is; None on a chapter.
    """
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and MARK in cell["source"]:
            known = data(ids if recipe is None else [recipe], size, recipe)
            cell["source"] = cell["source"].replace(
                MARK, block(known) if known["recipes"] else NONE
            )


NONE = (
    "This recipe is for the CPU engine of the book and not for a Spark, so there is nothing to"
    " plan."
)
