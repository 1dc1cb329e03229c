"""`sparkbook lock`: what decided how a server runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, progress, say
from sparkbook.cli.verbs import Group, group, verb

if TYPE_CHECKING:
    from sparkbook.findings import Findings
    from sparkbook.lock import Change


class _Lock(Group):
    """`lock ID` is `lock make ID`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["make", *args])


app = group("lock", "Make, verify and compare stack locks. 'lock ID' makes one.", _Lock)

LockFile = Annotated[str, typer.Argument(metavar="FILE", help="The lock.")]
Running = Annotated[
    str | None, typer.Option("--name", help="Name of the running server [default: the recipe's].")
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Hash every weight file, even if its name is its hash.")
]


@verb(app, "make")
def make(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A recipe ID, or a launch line.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write [default: print]."),
    ] = None,
    name: Running = None,
    deep: Deep = False,
    bench: Annotated[
        str | None, typer.Option(metavar="FILE", help="A result of 'sparkbook bench' to include.")
    ] = None,
) -> None:
    """Lock a stack as it runs now.

    Includes its memory plan. Values that only a running server knows are null if it does not run.
    """
    from sparkbook import lock
    from sparkbook.serve import launcher

    measured = None
    if bench:
        from sparkbook.bench.results import Report

        measured = Report.read(bench).summary()
    made = launcher.lock_of(source, name=name, deep=deep, planned=source, bench=measured)
    text = lock.dumps(made)
    if loose := lock.unpinned(made):
        progress(f"Not pinned, because nothing here shows it: {', '.join(loose)}")
    if output:
        from pathlib import Path

        from sparkbook.util.files import write_text

        write_text(Path(output).expanduser(), text)
    else:
        say(text, nl=False)


@verb(app, "verify", done="Nothing has changed.", bad="Something has changed.")
def verify(file: LockFile, name: Running = None, deep: Deep = False, as_json: Json = False) -> None:
    """Show what has changed since a lock was made."""
    from sparkbook.serve import launcher

    _answer(*launcher.verify(file, name=name, deep=deep), as_json)


@verb(app, "diff", done="The locks are the same.", bad="The locks differ.")
def diff(before: LockFile, after: LockFile, as_json: Json = False) -> None:
    """Show how two locks differ."""
    from sparkbook import lock

    changes = lock.diff(lock.read(before), lock.read(after))
    _answer(changes, lock.judge(changes), as_json)


def _answer(changes: list[Change], findings: Findings, as_json: bool) -> None:
    import dataclasses

    rows = {"changes": [dataclasses.asdict(change) for change in changes]}
    answer(as_json, rows | findings.to_dict(), [*map(str, changes), findings])
    if findings:
        raise typer.Exit(1)
