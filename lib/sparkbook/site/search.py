"""What the search page needs to recognize a pasted line of a log, a question and the names of
flags, rules and recipes: a script that the page loads (`_static/search.js`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sparkbook import recipes
from sparkbook.logs.signatures import signatures
from sparkbook.rules import every, plain
from sparkbook.runner import notebooks
from sparkbook.site import model_pages, questions, recommended

_HEADING = re.compile(r"^(?P<level>#{1,3}) (?P<text>.+)$", re.MULTILINE)
_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_OWN = ("flags/", "rules/", "models/")
"""Folders with pages that the search finds by other names."""


def headings(book: Path) -> dict[str, list[str]]:
    """Return the headings of each chapter and page of prose in an assembled book, by address; the
    page's own first.
    """
    found = {}
    for path in sorted((*book.rglob("*.md"), *book.rglob("*.ipynb"))):
        name = path.relative_to(book).with_suffix(".html").as_posix()
        if name.startswith(_OWN) or path.name.startswith("_"):
            continue
        if titles := list(_headings(_written(path))):
            found[name] = titles
    return found


def _written(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text("utf-8")
    cells = notebooks.read(path)["cells"]
    return "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")


def _headings(text: str) -> Iterator[str]:
    for match in _HEADING.finditer(_FENCED.sub("", text)):
        yield re.sub(r"[`*]|<[^>]+>|\{\w+\}", "", match["text"]).strip()


def script(
    flags: Iterable[str], models: Iterable[str], pages: Mapping[str, list[str]] | None = None
) -> str:
    """`_static/signatures.js`: patterns and addresses of all signatures, and the names of
    everything else that has a page.

    Args:
        flags: the flags that have a page.
        models: ids of the recipes.
        pages: what `headings` gave.
    """
    known = [
        {
            "id": signature.code,
            "title": plain(signature.title),
            "fix": plain(signature.fix),
            "address": signature.address,
            "pattern": [in_script(pattern) for pattern in signature.pattern],
            "also": [in_script(pattern) for pattern in signature.also],
            "unless": [in_script(pattern) for pattern in signature.unless],
            "example": signature.fails,
        }
        for signature in signatures()
    ]
    loaded = sorted(map(recipes.load, models), key=recommended.order)
    answers = {
        "signatures": known,
        "flags": sorted(flags),
        "codes": {one.code: [plain(one.heading), one.address] for one in every()},
        "recipes": [
            [recipe.title, model_pages.address(recipe), f"{recipe.id} {recipe.model.repo}"]
            for recipe in loaded
        ],
        "models": [
            [
                model_pages.title(found),
                f"models/{name}.html",
                " ".join(f"{one.title} {one.id} {one.model.repo}" for one in found),
            ]
            for name, found in model_pages.by_page(recipe.id for recipe in loaded).items()
        ],
        "questions": [
            [one.question, one.page, " ".join(one.search)] for one in questions.questions()
        ],
        "pages": [[titles[0], address, titles[1:]] for address, titles in (pages or {}).items()],
    }
    data = json.dumps(answers, ensure_ascii=False, separators=(",", ":"))
    return f"window.sparkbookSignatures = {data};\n"


def in_script(pattern: str) -> str:
    """Return a regular expression of Python as JavaScript writes it: named groups are the one
    difference in what the signatures use.
    """
    return re.sub(r"\(\?P<(\w+)>", r"(?:", pattern)
