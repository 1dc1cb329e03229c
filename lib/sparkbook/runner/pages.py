"""What there is to run: each chapter once, and the model template once per recipe."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.runner import notebooks
from sparkbook.runner.fingerprint import Fingerprints
from sparkbook.runner.project import Project

Target = Literal["auto", "plan"]
"""`auto`: chapters run against an engine; `plan`: no engine is started, and pages say what was not
run.
"""


@dataclass(frozen=True)
class Page:
    """One notebook to run.

    Attributes:
        name: `06_launch`, or `models/<recipe>` for a generated page.
        source: the committed notebook.
        out: where the executed one goes.
        values: parameters that differ from the defaults.
        engine: what it needs.
        fingerprint: hash of all it is made from.
        title: for a generated page, its heading and its entry in the table of contents.
        measures: whether nothing else may run.
    """

    name: str
    source: Path
    out: Path
    values: dict[str, Any]
    engine: notebooks.Engine
    fingerprint: str
    title: str | None = None
    measures: bool = False

    @property
    def record(self) -> Path:
        """The file that says what the executed notebook was made from."""
        return self.out.with_suffix(".json")

    def is_fresh(self) -> bool:
        """Return whether the executed notebook is there, ran to its end, and was made from what
        there is now.
        """
        return self.out.is_file() and self.made().get("fingerprint") == self.fingerprint

    def made(self) -> dict[str, str]:
        """Return what was written down when it ran to its end; empty where it did not."""
        try:
            return dict(json.loads(self.record.read_text("utf-8")))
        except (OSError, ValueError):
            return {}

    def forget(self) -> None:
        """Mark the executed notebook as stale, whatever happens next."""
        self.record.unlink(missing_ok=True)

    def remember(self) -> None:
        """Mark the executed notebook as made from what the fingerprint covers, today."""
        made = {"fingerprint": self.fingerprint, "date": datetime.date.today().isoformat()}
        self.record.write_text(json.dumps(made) + "\n", "utf-8")


def pages(project: Project, target: Target) -> list[Page]:
    """Return every page that is a notebook: the chapters in reading order, then the recipes' pages.

    Raises:
        SparkbookError: a chapter is missing or breaks the rules for its parameters cell, or a
            recipe is not valid.
    """
    prints = Fingerprints(project)
    return [*chapters(project, target, prints), *_models(project, target, prints)]


def chapters(project: Project, target: Target, prints: Fingerprints | None = None) -> list[Page]:
    """Return the chapters alone; `prints` saves hashing the library again."""
    prints = prints or Fingerprints(project)
    return [_chapter(project, path, target, prints) for path in project.chapters()]


def _chapter(project: Project, source: Path, target: Target, prints: Fingerprints) -> Page:
    # A chapter's own default says how it gets its engine; only a plan overrides it.
    values = (
        {"target": target} if target == "plan" and "target" in notebooks.parameters(source) else {}
    )
    out = project.executed / target / source.relative_to(project.root)
    engine = notebooks.engine_of(source)
    # What was measured on one server is not fresh for another.
    server = (
        os.environ.get("SPARKBOOK_ENDPOINT", "") if engine == "attach" and target != "plan" else ""
    )
    fingerprint = prints.chapter(source, values, f"{target} {server}".strip())
    return Page(
        source.stem,
        source,
        out,
        values,
        engine,
        fingerprint,
        measures=target != "plan" and notebooks.measures(source),
    )


def _models(project: Project, target: Target, prints: Fingerprints) -> list[Page]:
    from sparkbook import recipes

    found = []
    for recipe in (recipes.load(name) for name in project.recipe_ids()):
        values = {"recipe_id": recipe.id} | ({"target": target} if target != "auto" else {})
        out = project.executed / target / "models" / f"{recipe.slug}.ipynb"
        fingerprint = prints.model_page(recipe, values, target)
        found.append(
            Page(
                f"models/{recipe.slug}",
                project.template,
                out,
                values,
                "none",
                fingerprint,
                recipe.title,
            )
        )
    return found


def select(all_pages: list[Page], only: str | None) -> list[Page]:
    """Return the pages with this name; all of them where none is given. A recipe's page also
    answers to the recipe's own name.

    Raises:
        SparkbookError: no page is called so.
    """
    if only is None:
        return all_pages
    wanted = only.replace("/", "-")
    found = [
        page
        for page in all_pages
        if only == page.name or wanted == page.name.removeprefix("models/")
    ]
    if not found:
        raise SparkbookError(
            f"no chapter or recipe page is called '{only}'; there are"
            f" {', '.join(page.name for page in all_pages)}"
        )
    return found
