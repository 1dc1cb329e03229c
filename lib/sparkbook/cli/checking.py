"""`sparkbook check` and `sparkbook record`: this machine, judged and recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import ClusterFile, Json
from sparkbook.cli.output import answer, say, text_of
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(app, "check", done="Ready, or slow.", bad="Blocked.")
def check(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[RECIPE]", help="The recipe to serve: an ID, or a file."),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also load the GPU for 5 s in a container of its image.")
    ] = False,
    probes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="An earlier answer of 'check --json' to judge; repeatable, for several nodes.",
        ),
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Check whether this host is ready to serve.

    Prints what to do if it is not.
    """
    if cluster:
        if run or probes:
            raise SparkbookError("--cluster can't be used with --run or --probes")
        from sparkbook.cli import several

        several.moved("check", cluster)
        return several.check(cluster, recipe, as_json)
    if probes and (recipe or run):
        raise SparkbookError("--probes can't be used with a recipe or --run")

    from sparkbook import formats, host
    from sparkbook.host import text

    machines = [host.read_machine(text_of(file), file) for file in probes or []]
    if not machines:
        machines = [host.look(formats.resolve(recipe).recipe if recipe else None, run=run)]
    report = host.check(machines[0]) if len(machines) == 1 else host.check_nodes(machines)
    answer(as_json, report.to_dict(), text.lines(report))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@verb(
    app,
    "record",
    done="Written.",
    bad="A check of --kernels failed; the file says which.",
    interrupted="Interrupted; with --kernels the file holds the finished checks.",
)
def record(
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="[OUT]",
            help="A new folder, or a new .tar.gz; with --kernels a new file"
            " [default: sparkbook-kernels.json].",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="An engine's log, or -; repeatable."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running server, for its metrics and its release.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A scrape of /metrics; repeatable."),
    ] = None,
    host: Annotated[bool, typer.Option(help="Include the answer of 'check'.")] = True,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Another word to remove; repeatable."),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Check and time the CUDA kernels on this GPU instead.")
    ] = False,
) -> None:
    """Bundle logs, metrics and checks as test data, scrubbed.

    Secrets and names that are known are removed. Read the bundle before you give it away.
    """
    from pathlib import Path

    from sparkbook import bundle

    scrubber = bundle.Scrubber.of_this_machine(also or ())
    if kernels:
        if log or url or metrics or not host:
            raise SparkbookError("--kernels takes no --log, --url, --metrics or --no-host")
        from sparkbook.kernels import gpu_record

        file = Path(out or "sparkbook-kernels.json")
        found = gpu_record.record(file, say, scrubber.clean)
        say(f"{file}: {len(found['checks'])} checks, {found['failed']} failed")
        if found["failed"]:
            raise typer.Exit(1)
        return
    if out is None:
        raise SparkbookError("name a new folder or a new .tar.gz for the bundle")
    scrapes, release = bundle.served(url) if url else ({}, None)
    files = bundle.record(
        Path(out),
        logs=bundle.named(log or (), text_of),
        metrics=bundle.named(metrics or (), text_of) | scrapes,
        host=bundle.this_machine if host else None,
        release=release,
        scrubber=scrubber,
    )
    say("\n".join([f"{out}:", *(f"  {name}" for name in files)]))
