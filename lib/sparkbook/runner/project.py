"""Where things are: the checkout a book is built from, and what is built in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sparkbook.errors import SparkbookError

TEMPLATE = "model"
"""Stem of the notebook that is run once per recipe. It is no chapter: the table of contents does
not name it.
"""


@dataclass(frozen=True)
class Project:
    """A checkout of the book.

    Attributes:
        root: the folder with `_toc.yml`.
        recipes: ids of the recipes that get a page; None means the whole catalogue.
    """

    root: Path
    recipes: tuple[str, ...] | None = None

    @property
    def build(self) -> Path:
        """Everything generated; git ignores it."""
        return self.root / "_build"

    @property
    def executed(self) -> Path:
        """The notebooks as papermill left them, with a small JSON file next to each that says what
        it was made from.
        """
        return self.build / "executed"

    @property
    def source_tree(self) -> Path:
        """What Sphinx reads: prose, executed notebooks, generated table of contents."""
        return self.build / "book"

    @property
    def html(self) -> Path:
        """The published site."""
        return self.build / "html"

    @property
    def vendor(self) -> Path:
        """Scripts and fonts of other projects that the pages load."""
        return self.build / "vendor"

    @property
    def template(self) -> Path:
        """The notebook that is run once per recipe."""
        return self.root / "notebooks" / f"{TEMPLATE}.ipynb"

    def toc(self) -> dict[str, Any]:
        """Return the committed table of contents."""
        return yaml.safe_load((self.root / "_toc.yml").read_text("utf-8"))

    def chapters(self) -> list[Path]:
        """Return the notebooks that the table of contents names, in reading order.

        Raises:
            SparkbookError: a file that it names is not there.
        """
        found = []
        for name in toc_files(self.toc()):
            notebook = self.root / f"{name}.ipynb"
            if notebook.exists():
                found.append(notebook)
            elif not (self.root / f"{name}.md").exists():
                raise SparkbookError(
                    f"_toc.yml names {name}, but {name}.md and {name}.ipynb do not exist: add"
                    " it or drop the line"
                )
        return found

    @property
    def repository(self) -> str:
        """The address of the book's repository, which `_config.yml` states once; words in its place
        while it states none.
        """
        config = yaml.safe_load((self.root / "_config.yml").read_text("utf-8"))
        return config["repository"]["url"] or "ADDRESS-OF-THE-REPOSITORY"

    def recipe_ids(self) -> list[str]:
        """Return the recipes that get a page; none where there is no template."""
        from sparkbook import recipes

        if not self.template.exists():
            return []
        return list(self.recipes) if self.recipes is not None else recipes.ids()


def toc_files(node: Any) -> Iterator[str]:
    """Yield every file that a table of contents names, root first, in order."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("root", "file"):
                yield str(value)
            else:
                yield from toc_files(value)
    elif isinstance(node, list):
        for item in node:
            yield from toc_files(item)


def at(root: Path) -> Project:
    """Return the checkout in a folder.

    Raises:
        SparkbookError: there is no table of contents in it.
    """
    if not (root / "_toc.yml").is_file():
        raise SparkbookError(f"{root} is not a checkout of the book: it has no _toc.yml")
    return Project(root)


def here() -> Project:
    """Return the checkout that this library is part of.

    Raises:
        SparkbookError: the library was installed without the book.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "_toc.yml").is_file():
        raise SparkbookError(
            "the book's notebooks are not here: run this command in a checkout of the project"
        )
    return Project(root)
