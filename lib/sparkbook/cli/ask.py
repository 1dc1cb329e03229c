"""`sparkbook ask`: vLLM itself, asked what it makes of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from sparkbook.cli.options import Input, Json, between
from sparkbook.cli.output import answer as give
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from sparkbook.releases.answers import Depth

app = alone()
GIB = between(0.001, 1e6)


@verb(app, "ask", done="vLLM accepts the line.", bad="vLLM refuses the line.",
      unusable="The input cannot be used, or vLLM gave no answer.")  # fmt: skip
def ask(
    source: Input,
    release: Annotated[
        str | None, typer.Option(help="vLLM release to ask [default: the image's].")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="REF", help="Ask inside this image, without a network.")
    ] = None,
    depth: Annotated[
        str,
        typer.Option(metavar="D", help="How far to ask: parse, config, model, cache or admission."),
    ] = "cache",
    available_gib: Annotated[
        float | None,
        typer.Option(callback=GIB, help="MemAvailable at the start, GiB: asks the start check."),
    ] = None,
    kv_gib: Annotated[
        float | None,
        typer.Option(callback=GIB, help="Size of the KV cache, GiB [default: what is left]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask vLLM itself what it makes of a recipe or a launch line.

    Nothing is downloaded and no GPU is used: vLLM's own code decides on a pretended DGX Spark.
    """
    from sparkbook import oracle
    from sparkbook.oracle import text
    from sparkbook.releases.answers import DEPTHS

    if depth not in DEPTHS:
        raise SparkbookError(f"Unknown depth '{depth}'. --depth accepts: {', '.join(DEPTHS)}")
    if release and image:
        raise SparkbookError("--release and --image can't be used together: an image has its own")
    if depth == "admission" and available_gib is None:
        raise SparkbookError("--depth admission needs --available-gib, such as --available-gib 110")
    said = oracle.ask_line(
        source,
        release=release,
        image=image,
        depth=cast("Depth", depth),
        available_gib=available_gib,
        kv_gib=() if kv_gib is None else (kv_gib,),
    )
    give(as_json, said.model_dump(mode="json"), text.lines(said))
    if said.failed is not None:
        raise typer.Exit(2)
    if not said.accepted:
        raise typer.Exit(1)
