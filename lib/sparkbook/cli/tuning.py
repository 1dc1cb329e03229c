"""`sparkbook tune`: the settings of a recipe that are worth a start."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, progress
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(app, "tune")
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
    space: Annotated[
        str | None, typer.Option(metavar="FILE", help="Options to try [default: the project's].")
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="vLLM release to judge by and to ask [default: the image's].")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="REF", help="Ask inside this image of this machine.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the settings of a recipe that are worth a start.

    Starts nothing. Names the reason for each that it leaves out: errors, known-bad
    combinations, what vLLM refuses, what does not fit, what vLLM makes the same of.
    """
    from sparkbook import recipes
    from sparkbook.tune import space as spaces
    from sparkbook.tune import text, without_start

    if quality not in ("same", "near"):
        raise SparkbookError(f"Unknown quality '{quality}'. --quality accepts: same, near")
    if release and image:
        raise SparkbookError("--release and --image can't be used together: an image has its own")
    found, left_out = spaces.candidates(
        spaces.read(space), recipes.load(source), use, lossy=quality == "near"
    )
    pruned = without_start.prune(
        found, without_start.asker(found[0], release, image, progress), release
    )
    pruned.options = left_out
    answer(as_json, pruned.to_dict(), text.pruned(pruned))
