"""`sparkbook upgrade`: another image for a server that runs."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json, between
from sparkbook.cli.output import answer, progress
from sparkbook.cli.servers import Deadline, DryRun, Name, run_server
from sparkbook.cli.verbs import alone, verb

app = alone()


@verb(
    app,
    "upgrade",
    done="The new image is taken.",
    bad="Not taken: the old server serves as before.",
    interrupted="Interrupted; the old server serves as before.",
)
def upgrade(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Recipe ID or launch line of the server.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="IMAGE", help="The new image.")],
    name: Name = None,
    fraction: Annotated[
        float | None,
        typer.Option(
            "--gpu-memory-utilization",
            metavar="SHARE",
            callback=between(0.01, 0.99),
            help="The share that it was started with, if not INPUT's.",
        ),
    ] = None,
    lock: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Stack lock: updated when the image is taken."),
    ] = None,
    way: Annotated[
        str, typer.Option(help="Try it next to the old one (together), or in its place (swap).")
    ] = "auto",
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Take it even if answers change.")
    ] = False,
    slower: Annotated[
        float, typer.Option(callback=between(0, 100), help="Percent that it may be slower.")
    ] = 5.0,
    deadline: Deadline = 1800.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Try another image; take it if it is as good.

    Compares answers (equal), tool calls (check-tools) and speed (bench). If anything fails, and at
    Ctrl-C, the old container starts again.
    """
    from sparkbook import upgrade as steps

    wanted = steps.Wanted(
        source=source,
        image=to,
        name=name,
        fraction=fraction,
        lock=lock,
        way=way,
        allow_changed=allow_changed,
        slower=slower,
        deadline_s=deadline,
    )
    if dry_run:
        lines = steps.dry(wanted)
        return answer(as_json, {"steps": lines}, lines)
    outcomes: list[steps.Outcome] = []
    run_server(lambda: outcomes.append(steps.run(wanted, say=progress)))
    (outcome,) = outcomes
    answer(as_json, outcome.to_dict(), outcome.lines)
    if not outcome.taken:
        raise typer.Exit(1)
