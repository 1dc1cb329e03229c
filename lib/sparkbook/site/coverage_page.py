"""The coverage of the five documents held against the site's pages, and the page that lists it."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sparkbook import recipes, rules
from sparkbook.formats import FORMATS
from sparkbook.register import claims
from sparkbook.register.coverage import (
    CLAIMED,
    KINDS,
    NAMED,
    TITLES,
    Entry,
    Item,
    entries,
    home,
    outline,
    place,
)
from sparkbook.runner import notebooks
from sparkbook.runner.project import Project
from sparkbook.site import claims_page, flags


def names(project: Project) -> set[str]:
    """Return every page of the book."""
    found = {f"notebooks/{path.stem}" for path in project.chapters()}
    found |= {f"models/{recipes.load(name).slug}" for name in project.recipe_ids()}
    found |= {f"flags/{flag.name}" for flag in flags.flags(project.recipe_ids()).values()}
    found |= {f"rules/{family.page}" for family in rules.families()}
    found |= {f"generated/{name}" for name in ("claims", "changes", "coverage", "sources")}
    return found | {
        path.relative_to(project.root).with_suffix("").as_posix()
        for path in (project.root / "book").rglob("*.md")
    }


@functools.cache
def texts(project: Project) -> dict[str, str]:
    """Return every page of the book by name, with what a reader sees on it: chapters as committed,
    recipes, flags, the register, prose.
    """
    # Working out a rule's page runs its examples; no name has its home there, nor on the generated
    # pages but one.
    found = dict.fromkeys(sorted(names(project)), "")
    for path in project.chapters():
        cells = notebooks.read(path)["cells"]
        found[f"notebooks/{path.stem}"] = "\n".join(
            piece for cell in cells for piece in (cell["source"], *_shown(cell.get("outputs", ())))
        )
    for name in project.recipe_ids():
        recipe = recipes.load(name)
        found[f"models/{recipe.slug}"] = recipe.model_dump_json() + FORMATS[
            "docker" if recipe.image else "shell"
        ].write(recipe.launch)
    for flag in flags.flags(project.recipe_ids()).values():
        found[f"flags/{flag.name}"] = flags.page(flag, ())
    found["generated/claims"] = html.unescape(claims_page.page())
    for path in sorted((project.root / "book").rglob("*.md")):
        found[path.relative_to(project.root).with_suffix("").as_posix()] = path.read_text("utf-8")
    return found


def _shown(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield what a reader sees of a cell's outputs, as text."""
    for output in outputs:
        data = output.get("data", {})
        pieces = [
            output.get("text", ""),
            *(data.get(kind, "") for kind in ("text/html", "text/markdown", "text/plain")),
        ]
        for piece in pieces:
            yield html.unescape(re.sub(r"<[^>]+>", " ", "".join(piece)))


def problems(project: Project) -> Iterator[str]:
    """Yield what is wrong: an item without a home, a home that is not there or does not hold the
    name, an entry that nothing needs.
    """
    mapping, pages, used = entries(project.root), texts(project), set()
    for item in outline(project.root):
        entry = home(item, mapping)
        if entry is None:
            yield f"{item.key} has no home in this book"
            continue
        used.add(id(entry))
        page, _, anchor = place(item, entry).partition("#")
        if page in pages:
            if item.kind in NAMED and not item.stands_in(pages[page]):
                yield f"{item.key}: the name does not occur on {page}"
            if page == claims.PAGE and anchor:
                claims.get(anchor)
        elif not entry.reason:
            yield f"{item.key}: there is no page {page}"
    yield from (
        f"the entry of {entry.items[0]} matches nothing"
        for entry in mapping
        if id(entry) not in used
    )


def page(project: Project) -> str:
    """Return the table on the site, with a count that is worked out."""
    mapping, items = entries(project.root), outline(project.root)
    pages = names(project)
    placed = {
        item: (entry, place(item, entry).partition("#")[0] in pages)
        for item in items
        if (entry := home(item, mapping))
    }
    homes = sum(1 for _, there in placed.values() if there)
    lines = [
        "# Coverage",
        "",
        (
            "The content of the five documents that this book starts from, and where it is now:"
            f" {len(items)} items, {homes} with a home page, {len(placed) - homes} left out with a"
            f" reason, {len(items) - len(placed)} missing. Every option, variable, model and image"
            " must be mentioned by name on its home page; a test enforces this. The home of figures"
            " and settings is the [claims register](claims): a claim of the same document and"
            " section must contain them. The table lists only those that no claim contains."
        ),
        "",
        "| document | " + " | ".join(KINDS.values()) + " |",
        "|---" * (len(KINDS) + 1) + "|",
    ]
    for document, title in TITLES.items():
        counted = []
        for kind in KINDS:
            mine = [item for item in items if (item.document, item.kind) == (document, kind)]
            there = sum(1 for item in mine if item in placed and placed[item][1])
            counted.append(f"{there} of {len(mine)}" if mine else "–")
        lines.append(f"| {title} | {' | '.join(counted)} |")
    lines += [
        "",
        "```{raw} html",
        (
            '<div class="sb-scroll"><table class="table sb-table sb-record" data-example="guide'
            ' option"><thead><tr>'
        ),
    ]
    lines += [
        "".join(f'<th scope="col">{head}</th>' for head in ("Document", "Kind", "Item", "Home"))
        + "</tr></thead><tbody>"
    ]
    for item in items:
        if item in placed and not (item.kind in CLAIMED and placed[item][1]):
            lines.append(_row(item, *placed[item]))
    return "\n".join([*lines, "</tbody></table></div>", "```", ""])


def _row(item: Item, entry: Entry, there: bool) -> str:
    page, hash_, anchor = place(item, entry).partition("#")
    where: Any = (
        f'<a href="../{page}.html{hash_}{anchor}">{page}{hash_}{anchor}</a>'
        if there
        else html.escape(entry.reason or "")
    )
    cells = (item.document, item.kind, html.escape(item.name), where)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
