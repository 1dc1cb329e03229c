"""The planner in a page: the command `sparkbook plan` itself, run in the reader's browser by
Pyodide.

What a page loads when the reader asks for it, all from the site itself: Python (Pyodide, from npm)
and `library.zip`, which is packed here: the part of this library that a plan needs, and the
libraries that it needs in turn, with their licences. The compiled half of pydantic is its own build
for the browser (`vendor`). `_static/planner.js` makes the form, `_static/planner-worker.mjs` runs
Python in its own thread.
"""

from __future__ import annotations

import html
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sparkbook import releases
from sparkbook.errors import SparkbookError
from sparkbook.plan.kv import KV_WIDTH
from sparkbook.runner.project import Project
from sparkbook.site import chooser
from sparkbook.util.shell_text import command_line

MARK = "<!-- planner -->"
"""In a cell of a chapter: the planner stands here on the site."""

OWN = (
    "__init__.py",
    "cli/__init__.py",
    "cli/options.py",
    "cli/output.py",
    "cli/planning.py",
    "cli/verbs.py",
    "errors.py",
    "findings.py",
    "rules.py",
    "util/*.py",
    "units.py",
    "site/__init__.py",
    "site/in_page.py",
    "checkpoint/*",
    "cluster/__init__.py",
    "cluster/advice.py",
    "cluster/inventory.py",
    "cluster/published.yaml",
    "formats/*",
    "host/__init__.py",
    "host/meminfo.py",
    "host/spark.py",
    "launch/*.py",
    "lint/*.py",
    "lint/rules/*.py",
    "plan/*",
    "recipes/*.py",
    "recipes/catalogue/*.yaml",
    "releases/*",
)
"""Files of this library, below `sparkbook`. A test follows the command and says what is missing."""

OTHERS = (
    "annotated-doc",
    "annotated-types",
    "packaging",
    "pydantic",
    "pydantic-core",
    "PyYAML",
    "rich",
    "shellingham",
    "typer",
    "typing-extensions",
    "typing-inspection",
)
"""Distributions that come along, as they are installed here: pure Python, and `pydantic-core`'s
Python half.
"""

PYODIDE = """\
The planner in the page runs in Pyodide, which is under the Mozilla Public License 2.0
(https://www.mozilla.org/MPL/2.0/); its source is at https://github.com/pyodide/pyodide.
Pyodide contains CPython and its standard library, which are under the Python Software
Foundation License (https://docs.python.org/3/license.html). library.zip contains this book's
own library (Apache-2.0) and the following."""

_LEFT_OUT = ("pydantic/v1/", "pydantic/mypy.py", "pydantic/_hypothesis_plugin.py")
_OF_A_LICENCE = ("licen", "copying", "notice")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write(project: Project, folder: Path) -> int:
    """Write `library.zip` and the licences next to it, for the site.

    Args:
        project: the checkout, whose `vendor` has been made.
        folder: the `_static/planner` that Sphinx reads.

    Returns:
        Bytes that a reader's browser loads to run the planner, uncompressed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    came = project.vendor / "site" / "planner"
    (folder / "library.zip").write_bytes(pack(project.vendor / "wasm"))
    texts = [PYODIDE, *(f"{name}\n\n{text}" for name, text in _licences())]
    (folder / "LICENCES.txt").write_text(f"\n\n{'=' * 100}\n".join(texts), "utf-8")
    return sum(
        path.stat().st_size
        for path in [*came.iterdir(), folder / "library.zip"]
        if path.suffix != ".txt"
    )


def pack(wasm: Path) -> bytes:
    """Return the archive, the same for the same files: sorted, and with one date.

    Args:
        wasm: the folder with the unpacked build of `pydantic-core` for the browser.

    Raises:
        SparkbookError: one of the libraries is not installed, or that build is not there.
    """
    found = dict(_own()) | dict(_installed())
    compiled = sorted(wasm.rglob("*.so"))
    if not compiled:
        raise SparkbookError(
            "pydantic-core's build for the browser is not there: run 'make book', which fetches it"
        )
    found |= {path.relative_to(wasm).as_posix(): path for path in compiled}
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(found):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, found[name].read_bytes())
    return held.getvalue()


def _own() -> Iterator[tuple[str, Path]]:
    """Yield this library's files: name in the archive, and the file."""
    library = Path(__file__).resolve().parents[1]
    for pattern in OWN:
        for path in library.glob(pattern):
            if path.is_file() and path.suffix in (".py", ".yaml", ".json"):
                yield f"sparkbook/{path.relative_to(library).as_posix()}", path


def _installed() -> Iterator[tuple[str, Path]]:
    """Yield the other libraries' Python files."""
    for name in OTHERS:
        for file in _distribution(name).files or ():
            inside = file.as_posix()
            if file.suffix == ".py" and ".." not in file.parts and not inside.startswith(_LEFT_OUT):
                yield inside, Path(str(file.locate()))


def _licences() -> Iterator[tuple[str, str]]:
    """Yield name and version of each library that comes along, with the text of its licence."""
    for name in OTHERS:
        distribution = _distribution(name)
        for file in distribution.files or ():
            if ".dist-info" in str(file) and any(
                word in file.name.lower() for word in _OF_A_LICENCE
            ):
                yield (
                    f"{name} {distribution.version}, {file.name}",
                    Path(str(file.locate())).read_text("utf-8", errors="replace"),
                )


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise SparkbookError(
            f"{name} is not installed, which the planner in the page needs: run 'make book'"
        ) from None


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
        size: what `write` gave.
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
