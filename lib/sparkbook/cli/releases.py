"""`sparkbook releases`: what vLLM accepts."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import print_json, say, show
from sparkbook.cli.verbs import group, verb
from sparkbook.errors import SparkbookError

app = group("releases", "Show what vLLM releases accept, and what changed.")


@verb(app, "list")
def list_(as_json: Json = False) -> None:
    """List the known releases."""
    from sparkbook import releases

    if as_json:
        print_json(releases.known())
    else:
        say("\n".join(releases.known()))


@verb(app, "show")
def show_(
    version: Annotated[str, typer.Argument(metavar="V", help="A release such as 0.32.0.")],
    category: Annotated[
        str | None, typer.Option(help="Show every name of a category, such as options or envs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a release accepts."""
    from sparkbook import releases
    from sparkbook.releases import changelog, text

    release = releases.get(version)
    if category is not None and category not in releases.CATEGORIES:
        accepted = ", ".join(releases.CATEGORIES)
        raise SparkbookError(f"Unknown category '{category}'. --category accepts: {accepted}")
    if as_json:
        print_json(release.names(category) if category else changelog.to_dict(release.version))
    elif category:
        show(*text.names(release, category))
    else:
        show(*text.summary(release))


@verb(app, "diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="V1", help="The release you come from.")],
    after: Annotated[str, typer.Argument(metavar="V2", help="The release you go to.")],
    as_json: Json = False,
) -> None:
    """Show what changed between two releases, as a changelog."""
    import dataclasses

    from sparkbook import releases
    from sparkbook.releases import text

    if as_json:
        print_json([dataclasses.asdict(change) for change in releases.diff(before, after)])
    else:
        show(*text.changes(before, after))
