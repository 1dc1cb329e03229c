"""One page a model: its recipes as sections, which the page's script shows as tabs, and a redirect
from the address of each recipe.

A recipe's notebook runs by itself, as before; only what Sphinx reads is put together here.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkbook import recipes
from sparkbook.recipes import Recipe, names
from sparkbook.runner import notebooks
from sparkbook.site import recommended
from sparkbook.util.markup import literal

_HEADING = re.compile(r"^(#{1,4}) ", re.MULTILINE)
_OWN = "The models of this book"
MACHINERY = "machinery"
"""Tag of a template's cells that are about the notebook and not about the model."""


def page_of(recipe_id: str) -> str:
    """Return the name of the page of a recipe's model."""
    return names.model_of(recipe_id)


def address(recipe: Recipe) -> str:
    """Return where a recipe is on the site."""
    return f"models/{page_of(recipe.id)}.html#{anchor(recipe.slug)}"


def anchor(slug: str) -> str:
    """Return the anchor of a recipe; a page's own heading may be called like one of its recipes."""
    return f"recipe-{slug}"


def by_page(ids: Iterable[str]) -> dict[str, list[Recipe]]:
    """Return the recipes of each page, the one to take first."""
    pages: dict[str, list[Recipe]] = {}
    for recipe in map(recipes.load, ids):
        pages.setdefault(page_of(recipe.id), []).append(recipe)
    return {name: sorted(found, key=recommended.order) for name, found in pages.items()}


def title(found: Sequence[Recipe]) -> str:
    """Return the heading of a page: the words with which all its recipes' titles begin."""
    if found[0].family == "embedded":
        return _OWN
    every = zip(*(one.title.replace(",", " ,").split() for one in found), strict=False)
    words = [same[0] for same in itertools.takewhile(lambda same: len({*same}) == 1, every)]
    while len(words) > 1 and words[-1].lower() in (",", "on", "with", "for", "by"):
        words.pop()
    return " ".join(words).replace(" ,", ",") or found[0].title


def label(recipe: Recipe, heading: str) -> str:
    """Return what tells a recipe from the others of its page."""
    rest = recipe.title.removeprefix(heading).strip(" ,") or recipe.id
    return rest + (" (obsolete)" if recipe.successor else "")


def merged(found: Sequence[Recipe], parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return one notebook for a page.

    Args:
        found: its recipes, in order.
        parts: the published notebook of each, by id.
    """
    heading = title(found)
    first = parts[found[0].id]
    cells = [_text("page", f"# {literal(heading)}\n\n{_overview(found, heading)}")]
    for recipe in found:
        for number, cell in enumerate(parts[recipe.id]["cells"]):
            made = _own_names(cell, recipe)
            if number == 0:
                made["source"] = _section(recipe, heading, made["source"])
            cells.append(made)
    return {**first, "cells": cells}


def _text(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


def _section(recipe: Recipe, heading: str, text: str) -> str:
    """Return the first cell of a recipe: its heading with its anchor, and its badges."""
    badges = "\n".join(line for line in text.splitlines() if line.startswith("<ul"))
    mark = (
        f'<span class="sb-variant" id="{anchor(recipe.slug)}"'
        f' data-label="{html.escape(label(recipe, heading))}"></span>'
    )
    return f"## {literal(recipe.title)}\n\n{mark}\n\n{badges}"


def _own_names(cell: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return a cell with names that no other recipe's has: its id, and the anchors of sources."""
    made = {**cell, "id": re.sub(r"[^\w-]", "-", f"{recipe.slug}-{cell['id']}")[-64:]}
    if cell["cell_type"] == "markdown":
        made["source"] = _HEADING.sub(r"#\1 ", cell["source"])
        if MACHINERY in notebooks.tags(cell):
            text = re.sub(r"^#+ (.*)$", r"**\1**", cell["source"], flags=re.MULTILINE)
            made["source"] = f":::{{div}} sb-machinery\n{text}\n:::"
        return made
    made["outputs"] = [_own_anchors(output, recipe) for output in cell["outputs"]]
    return made


def _own_anchors(output: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    data = output.get("data", {})
    text = "".join(data.get("text/html", ""))
    if "source-" not in text:
        return output
    text = re.sub(r'(id="|href="#)source-', rf"\1{recipe.slug}-source-", text)
    return {**output, "data": {**data, "text/html": text}}


def _overview(found: Sequence[Recipe], heading: str) -> str:
    """Return the recipes of a page as a table; nothing for one."""
    if len(found) == 1:
        return ""
    head = ("Recipe", "Image", "Draft", "Memory", "Sparks")
    rows = []
    for recipe in found:
        cells = (
            f'<a href="#{anchor(recipe.slug)}">{html.escape(label(recipe, heading))}</a>',
            f"<code>{html.escape(recipe.image.ref)}</code>" if recipe.image else "none",
            recipe.draft.method if recipe.draft else "none",
            f"{recipe.topology.memory_gb} GB",
            str(recipe.topology.nodes),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    titles = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        '<div class="sb-scroll"><table class="table sb-table sb-variants"><thead><tr>'
        f"{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def redirects(found: Mapping[str, Sequence[Recipe]]) -> dict[str, str]:
    """Return the pages at the addresses that recipes had before, by name, each leading to a
    recipe's section.
    """
    pages = {}
    for name, of_page in found.items():
        for recipe in of_page:
            if recipe.slug in found:
                continue
            to = html.escape(f"{name}.html#{anchor(recipe.slug)}")
            pages[recipe.slug] = (
                f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
                f"<title>{html.escape(recipe.title)}</title>"
                f'<meta http-equiv="refresh" content="0; url={to}"></head>'
                f'<body><p>See <a href="{to}">{html.escape(recipe.title)}</a>.</p></body></html>\n'
            )
    return pages


def direct(text: str, slugs: Mapping[str, str]) -> str:
    """Return a page's text with links to recipes' old addresses led to their sections. `slugs`:
    page by slug.
    """

    def to(match: re.Match[str]) -> str:
        page = slugs.get(match["slug"])
        return f"models/{page}.html#{anchor(match['slug'])}" if page else match[0]

    return re.sub(r"models/(?P<slug>[\w.-]+?)\.html(?!#)", to, text)
