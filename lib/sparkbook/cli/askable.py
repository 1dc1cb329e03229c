"""`sparkbook engines`: the vLLM releases that can be asked."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import print_json, progress, say
from sparkbook.cli.verbs import group, verb

app = group("engines", "The vLLM releases that can be asked on this machine.")
Release = Annotated[str, typer.Argument(metavar="V", help="A vLLM release, such as 0.28.0.")]


@verb(app, "list")
def list_engines(as_json: Json = False) -> None:
    """List the releases that can be asked."""
    from sparkbook.oracle import engines
    from sparkbook.units import format_bytes

    here = engines.available()
    if as_json:
        print_json([{"vllm": e.version, "embedded": e.embedded, "bytes": e.bytes} for e in here])
        return
    for engine in here:
        what = "the embedded engine" if engine.embedded else format_bytes(engine.bytes)
        say(f"{engine.version:<10} {what}")
    if not here:
        progress("No release is here. Run: make engine")


@verb(app, "add")
def add(version: Release) -> None:
    """Fetch a release from the package index, to be asked."""
    from sparkbook.oracle import engines

    say(f"vLLM {engines.add(version).version} can be asked")


@verb(app, "remove")
def remove(version: Release) -> None:
    """Remove a release that was added."""
    from sparkbook.oracle import engines

    say(f"vLLM {engines.remove(version).version} is removed")
