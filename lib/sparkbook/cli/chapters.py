"""`sparkbook book`: run the chapters."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, progress
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(
    app,
    "book",
    done="All notebooks ran.",
    bad="A notebook failed.",
    interrupted="Interrupted; the same line runs the rest.",
)
def book(
    notebooks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NOTEBOOK]...", help="Chapters such as 06_launch, or files [default: all]."
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", "-p", metavar="NAME=V1,V2", help="Run with each of the values."
        ),
    ] = None,
    matrix: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="YAML: 'notebook', and 'parameters' with their values."),
    ] = None,
    to: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder for results; only missing ones are run.")
    ] = "_build/batch",
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at a time on this machine.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster to run on, HOST:6379 or auto."),
    ] = None,
    target: Annotated[str, typer.Option(help="auto, or plan: start no engine.")] = "auto",
    attempts: Annotated[int, typer.Option(min=1, help="Most starts of a notebook.")] = 3,
    as_json: Json = False,
) -> None:
    """Run notebooks here or on a Ray cluster, and collect them.

    Needs a checkout of the book, and its environment (make book).
    """
    from pathlib import Path

    from sparkbook.runner import batch, batch_workers, text

    if target not in ("auto", "plan"):
        raise SparkbookError(f"Unknown target '{target}'. --target accepts: auto, plan")
    todo = batch.jobs(
        notebooks or [],
        batch.assignments(parameter or []),
        matrix_file=matrix,
        target="plan" if target == "plan" else "auto",
    )
    try:
        outcome = batch.run(
            todo,
            Path(to),
            lambda: batch_workers.made(jobs, ray, progress),
            attempts=attempts,
        )
    except KeyboardInterrupt:
        progress(f"Interrupted: nothing is left running; finished notebooks are in {to}")
        raise typer.Exit(130) from None
    answer(as_json, outcome.to_dict(), text.lines(outcome))
    if not outcome.ok:
        raise typer.Exit(1)
