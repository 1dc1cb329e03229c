"""A release, and what changed between two, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from sparkbook.releases import CATEGORIES, Release
from sparkbook.releases.changelog import changelog, describe

if TYPE_CHECKING:
    from rich.console import RenderableType


def summary(release: Release) -> Iterator[RenderableType]:
    """Yield how many names each category of a release has."""
    yield Text(f"vLLM {release.version}", "bold")
    yield "  requires " + ", ".join(f"{name} {needed}" for name, needed in release.requires.items())
    for name, title in CATEGORIES.items():
        yield f"  {len(release.names(name)):4} {title} (--category {name})"


def names(release: Release, category: str) -> Iterator[RenderableType]:
    """Yield every name of a category, with what is known about it."""
    for name, value in release.names(category).items():
        yield ": ".join(filter(None, [name, describe(category, value)]))


def changes(before: str, after: str) -> Iterator[RenderableType]:
    """Yield the changelog from one release to another.

    Raises:
        ReleaseError: one of them is not in the table.
    """
    sections = changelog(before, after)
    if not sections:
        yield f"vLLM {after} accepts what {before} does."
    for title, lines in sections:
        yield Text(f"{title} ({len(lines)})", "bold")
        for line in lines:
            yield f"  {line}"
