"""`sparkbook cluster`: a server over several Sparks."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, exit_with, print_bytes, progress, say
from sparkbook.cli.servers import Deadline, DryRun, Name, Port, ready, run_server
from sparkbook.cli.verbs import group, verb
from sparkbook.errors import SparkbookError
from sparkbook.util.shell_text import command_line

app = group("cluster", "Check several Sparks, and serve one model over them.")

File = Annotated[str, typer.Argument(metavar="FILE", help="The inventory of the Sparks, YAML.")]
Rank = Annotated[str, typer.Argument(metavar="NAME", help="The name of the server.")]


def moved(*words: str) -> None:
    """Say that a verb's `--cluster FILE` is written another way now."""
    line = command_line("sparkbook", "cluster", *words)
    progress(f"sparkbook: --cluster is deprecated. Write: {line}")


@verb(app, "check", done="Ready, or slow.", bad="Blocked.")
def check(
    file: File,
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="The recipe to serve.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every Spark, and measure the network between them."""
    from sparkbook.cluster import commands

    report = commands.check(file, recipe)
    answer(as_json, report.to_dict(), [*report.lines, report.findings, report.verdict])
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@verb(app, "serve", done="It answers.", bad="A rank failed.", interrupted="Interrupted.")
def serve(
    file: File,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A recipe ID, or a launch line.")],
    name: Name = None,
    layout: Annotated[
        str | None, typer.Option(help="How to spread the model: tp=2, pp=2 or dp=2.")
    ] = None,
    backend: Annotated[str, typer.Option(help="native (vLLM's own ranks) or ray.")] = "native",
    port: Port = None,
    stage: Annotated[
        bool, typer.Option("--stage", help="First put image and weights on every Spark.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move a running server, if vLLM can; else say how.")
    ] = False,
    deadline: Deadline = 1800.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Start a server over all Sparks and wait until it answers."""
    from sparkbook.cluster import commands

    wish = commands.Wish(file, source, name, layout, backend, port, stage, deadline, replace)
    if not dry_run:
        run_server(lambda: commands.serve(wish, say=progress, show=ready(as_json)))
        return

    from sparkbook.cluster import server

    planned, _, notes = commands.plan(wish)
    ranks = {
        "layout": planned.layout.model_dump(),
        "backend": backend,
        "ranks": server.shown(planned),
    }
    answer(as_json, ranks | notes.to_dict(), [server.shown_text(planned), notes])


@verb(app, "status", done="All ranks are ready or running.", bad="A rank is not.")
def status(file: File, as_json: Json = False) -> None:
    """List the ranks on every Spark."""
    from sparkbook.cluster import commands, text

    rows = commands.status(file)
    answer(as_json, {"ranks": rows}, text.ranks(rows))
    if any(row["state"] not in ("ready", "running") for row in rows):
        raise typer.Exit(1)


@verb(app, "logs", bad="With --diagnose: a rank failed.")
def logs(
    file: File,
    name: Rank,
    diagnosis: Annotated[
        bool, typer.Option("--diagnose", help="Say which rank failed first, and why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the logs of all ranks, or explain them."""
    from sparkbook.cluster import commands, text

    if as_json and not diagnosis:
        raise SparkbookError("--json needs --diagnose")
    if not diagnosis:
        for rank, log in commands.logs(file, name):
            say(text.heading(rank))
            print_bytes(log)
        return
    findings, tails = commands.diagnose(file, name)
    answer(as_json, findings.to_dict(tails=tails), text.fault(findings, tails))
    exit_with(findings)


@verb(app, "stop", bad="A rank is left.")
def stop(file: File, name: Rank, as_json: Json = False) -> None:
    """Stop all ranks of a server."""
    from sparkbook.cluster import commands, text

    names, left = commands.stop(file, name)
    answer(as_json, {"stopped": names, **left.to_dict()}, text.stopped(names, left))
    if left:
        raise typer.Exit(1)
