"""What there is to run: each chapter once, and the model template once per recipe."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.register import claims
from sparkbook.runner import notebooks
from sparkbook.runner.fingerprint import Fingerprints
from sparkbook.runner.project import Project
from sparkbook.site import record

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
        measures: whether nothing may run beside it.
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
        """Whether the executed notebook is there, ran to its end, and was made from what there is
        now.
        """
        return self.out.is_file() and self.made().get("fingerprint") == self.fingerprint

    def made(self) -> dict[str, str]:
        """What was written down when it ran to its end; empty where it did not."""
        try:
            return dict(json.loads(self.record.read_text("utf-8")))
        except (OSError, ValueError):
            return {}

    def forget(self) -> None:
        """From now on the executed notebook counts as stale, whatever happens."""
        self.record.unlink(missing_ok=True)

    def remember(self) -> None:
        """The executed notebook is what the fingerprint stands for, and ran today."""
        made = {"fingerprint": self.fingerprint, "date": datetime.date.today().isoformat()}
        self.record.write_text(json.dumps(made) + "\n", "utf-8")


def pages(project: Project, target: Target) -> list[Page]:
    """Every page that is a notebook: the chapters in reading order, then the recipes' pages.

    Raises:
        SparkbookError: a chapter is missing or breaks the rules for its parameters cell, or a
            recipe is not valid.
    """
    prints = Fingerprints(project)
    return [*chapters(project, target, prints), *_models(project, target, prints)]


def chapters(project: Project, target: Target, prints: Fingerprints | None = None) -> list[Page]:
    """The chapters alone; `prints` saves hashing the library again."""
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
    """The pages with this name; all of them where none is given. A recipe's page also answers to
    the recipe's own name.

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
            f"no chapter and no recipe's page is called '{only}'; there are"
            f" {', '.join(page.name for page in all_pages)}"
        )
    return found


def as_published(page: Page, register: bool = True) -> dict[str, Any]:
    """The executed notebook as Sphinx gets it; `register` is whether the book has the claims
    register.

    A generated page gets its own heading in place of the template's, and shows the parameters that
    it was run with, not those that they replaced. A picture gets its alternative text: the one its
    output carries, else the sentence above the cell. A figure drawn from the claims register leads
    to the claim's row, under the heading stands what the page's numbers were taken on, and at the
    end which claims it uses.
    """
    notebook = notebooks.read(page.out)
    above, seen = "", set[str]()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            above = cell["source"].strip() or above
            cell["source"] = claims.on_site(cell["source"], seen=seen)
        else:
            _describe_pictures(cell, above)
            for output in cell["outputs"]:
                output.get("data", {}).pop(
                    claims.MIME, None
                )  # a record for the build, nothing to show
    if page.title is not None:
        _retitle(notebook, page.title)
    _badge(notebook, record.badges(page, notebook))
    if register and (uses := claims.uses(page.name)):
        notebook["cells"].append(
            {"cell_type": "markdown", "id": "claims-used", "metadata": {}, "source": uses}
        )
    return notebook


def _badge(notebook: dict[str, Any], badges: str) -> None:
    """Put the badges right under the page's heading."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and cell["source"].startswith("# "):
            heading, _, rest = cell["source"].partition("\n")
            cell["source"] = f"{heading}\n\n{badges}\n{rest}"
            return


def _describe_pictures(cell: dict[str, Any], above: str) -> None:
    pictures = [
        output
        for output in cell["outputs"]
        if any(kind.startswith("image/") for kind in output.get("data", {}))
    ]
    if not pictures or cell["metadata"].get("mystnb", {}).get("image", {}).get("alt"):
        return
    given = [
        about.get("alt")
        for output in pictures
        for kind, about in output["metadata"].items()
        if kind.startswith("image/")
    ]
    # The last line: the sentence right above the cell. A line break or a quote would end the
    # attribute.
    text = " ".join(alt for alt in given if alt) or next(iter(above.splitlines()[-1:]), "Figure")
    settings = cell["metadata"].setdefault("mystnb", {})
    settings["image"] = {
        **settings.get("image", {}),
        "alt": " ".join(text.replace("`", "").replace("*", "").split()),
    }


def _retitle(notebook: dict[str, Any], title: str) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and cell["source"].startswith("# "):
            cell["source"] = "\n".join([f"# {title}", *cell["source"].splitlines()[1:]])
            break
    if any("injected-parameters" in notebooks.tags(cell) for cell in notebook["cells"]):
        for cell in notebook["cells"]:
            if "parameters" in notebooks.tags(cell):
                cell["metadata"]["tags"] = ["parameters", "remove-cell"]
