"""`sparkbook tune`: the fastest settings of a recipe for a use."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sparkbook.cli.options import Json, between
from sparkbook.cli.output import answer, progress
from sparkbook.cli.servers import run_server
from sparkbook.cli.verbs import alone, verb

app = alone()


@verb(
    app,
    "tune",
    done="Answered: a winner, or none.",
    bad="A server failed.",
    interrupted="Interrupted; the same line again resumes.",
)
def tune(
    source: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe ID or recipe file.")],
    use: Annotated[
        str, typer.Option("--for", help="What it is tuned for: chat, agent, users, batch.")
    ],
    quality: Annotated[
        str,
        typer.Option(
            help="Options: same (lossless ones), or near (also those that change answers)."
        ),
    ] = "same",
    hours: Annotated[
        float,
        typer.Option(callback=between(0, 1000), help="For all starts and measurements together."),
    ] = 8.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what is worth a start; start nothing.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the winner as a recipe file.")
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="What was measured [default: one a recipe and use, kept]."
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option(metavar="FILE", help="Options to try [default: the project's].")
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="vLLM release to judge by and to ask [default: the image's].")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="REF", help="Ask inside this image of this machine.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Inventory: spread candidates over its nodes."),
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    as_json: Json = False,
) -> None:
    """Find the fastest settings of a recipe for a use.

    Starts servers and measures them. Leaves out without a start what is known to be bad, refused
    by vLLM, too large, or the same as another. A measurement that the gate rejects is never
    counted. The winner is faster than the recipe by more than the noise, and answers the same.
    """
    from sparkbook.tune import commands, text
    from sparkbook.util.files import check_place

    if worker:
        from sparkbook.tune.worker import work

        work(sys.stdin, sys.stdout)
        return
    wish = commands.Wish(
        source=source,
        use=use,
        quality=quality,
        space=space,
        release=release,
        image=image,
        hours=hours,
        journal=journal,
        cluster=cluster,
        seed=seed,
    )
    if dry_run:
        _, _, left = commands.pruned(wish, progress)
        answer(as_json, left.to_dict(), text.pruned(left))
        return

    if out:
        check_place(out)

    def act() -> None:
        left, found, kept = commands.tune(wish, progress)
        value = {**found.to_dict(), "space": left.to_dict(), "journal": str(kept.file)}
        if out and found.winner:
            commands.keep(found, use, out)
        answer(as_json, value, text.answer(found))

    run_server(act)
