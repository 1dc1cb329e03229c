"""The pages on the book itself: claims, changes, coverage and sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkbook.register import claims, coverage
from sparkbook.runner import notebooks
from sparkbook.site import badges, changes, claims_page, coverage_page, sources

if TYPE_CHECKING:
    from pathlib import Path

    from sparkbook.runner.pages import Page
    from sparkbook.runner.project import Project
    from sparkbook.site.links import Linker


def generated(project: Project) -> Iterator[tuple[str, str]]:
    """Yield name and Markdown of each page; none for a book without a register."""
    if not (project.root / claims.FOLDER).is_dir():
        return
    yield "claims", claims_page.page()
    yield "changes", changes.page()
    if (project.root / coverage.FILE).is_file():
        yield "coverage", coverage_page.page(project)
    yield "sources", sources.page(project)


def write(project: Project, folder: Path, toc: dict[str, Any], linker: Linker) -> None:
    """Put the generated pages, with their links, into the assembled book and into its table of
    contents.
    """
    entries = []
    for name, markdown in generated(project):
        (folder / "generated").mkdir(exist_ok=True)
        (folder / "generated" / f"{name}.md").write_text(
            linker.markdown(markdown, f"generated/{name}.html"), "utf-8"
        )
        entries.append({"file": f"generated/{name}"})
    if entries:
        toc.setdefault("parts", []).append({"caption": "The record", "chapters": entries})


def unreported(project: Project, pages: list[Page]) -> list[str]:
    """Return executable claims that this build's notebooks do not report. In a plan, chapters that
    need an engine are left out.
    """
    if not (project.root / claims.FOLDER).is_dir():
        return []
    chapters = {
        page.name: notebooks.read(page.out)
        for page in pages
        if page.title is None and page.out.is_file()
    }
    silent = {name for name, notebook in chapters.items() if badges.not_run(notebook)}
    return claims.unreported(
        chapters, [claim for claim in claims.every() if claim.executed_by not in silent]
    )
