"""`make book`: run what changed, chapter by chapter, then publish."""

from __future__ import annotations

import sys
from typing import TextIO

from sparkbook.runner.pages import Target, pages, select
from sparkbook.runner.project import Project
from sparkbook.runner.run_pages import Outcome, Progress, locked, run_all
from sparkbook.site.publish import publish


def build(
    project: Project, target: Target = "auto", only: str | None = None, out: TextIO | None = None
) -> Outcome:
    """Run the pages that are stale and publish the site.

    A page that fails does not keep the others from running, nor the site from being built.

    Args:
        project: the checkout.
        target: `plan` starts no engine.
        only: a page's name; the others are left as they are.
        out: where progress goes, one line a page (standard output).

    Raises:
        BuildLocked: another build is at work.
        SparkbookError: the book itself is not in order (a chapter missing, a recipe invalid).
        KeyboardInterrupt: after every kernel and the engine have been stopped.
    """
    with locked(project):
        every = pages(project, target)
        wanted = select(every, only)
        outcome = Outcome()
        progress = Progress(len(wanted), out or sys.stdout)
        stale = [page for page in wanted if not page.is_fresh()]
        for page in wanted:
            if page not in stale:
                outcome.fresh += 1
                progress.line(page, "unchanged")
        run_all(stale, target, outcome, progress)
        missing = [page.name for page in every if not page.out.is_file()]
        if missing:
            progress.say(
                f"site: not built; pages that have not run yet: {len(missing)}"
                f" ({_some(missing)}). 'make book' runs them"
            )
            return outcome
        publish(project, every, outcome, progress.say)
        return outcome


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
