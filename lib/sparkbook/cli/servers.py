"""What verbs that start a server share, on one Spark and on several."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sparkbook.cli.options import WAIT
from sparkbook.cli.output import answer, progress, say

Name = Annotated[str | None, typer.Option(help="Name of the container.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port on the host.")]
Deadline = Annotated[
    float, typer.Option(callback=WAIT, help="Seconds to wait until the server answers.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent or run; start nothing.")
]


def ready(as_json: bool) -> Callable[[dict[str, Any]], None]:
    """Return what prints a server that is ready."""
    from sparkbook.serve import text

    return lambda facts: answer(as_json, facts, text.ready(facts))


def run_server(act: Callable[[], None]) -> None:
    """Do what starts a server: exit with 1 if the server failed, with 130 after Ctrl-C, and with
    128 + the signal's number after SIGTERM and SIGHUP. None of the three leaves anything behind;
    where a clean-up fails, its message says what is left.
    """
    from sparkbook.serve import interrupts
    from sparkbook.serve.engine import EngineError
    from sparkbook.serve.faults import ServeFault
    from sparkbook.serve.ready import NotReady

    try:
        with interrupts.raised():
            act()
    except (EngineError, NotReady, ServeFault, interrupts.Interrupted) as error:
        end = interrupts.behind(error)
        if error is not end:
            say(f"sparkbook: {error}", err=True)
        if end is None:
            raise typer.Exit(1) from None
        progress("sparkbook: Interrupted")
        raise typer.Exit(128 + getattr(end, "number", signal.SIGINT)) from None
