"""Servers for a terminal: one that is ready, and the list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.findings import Findings
    from sparkbook.serve.running import Server


def ready(facts: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield what to know about a server that is ready."""
    for label, value in facts.items():
        if value is not None:
            yield f"{label:<8} {value}"


def servers(rows: Sequence[Server], notes: Findings) -> Iterator[RenderableType]:
    """Yield a line for each server, and why Docker can't be asked."""
    if not rows:
        yield "No server was started here."
    for server in rows:
        about = ", ".join(filter(None, [server.target, server.recipe]))
        yield Text.assemble(
            (f"{server.state:<10}", "green" if server.state == "ready" else "bold red"),
            f"  {server.name}  {server.served} at {server.url}  ({about})",
        )
        if server.end:
            yield server.end
    if notes.worst == "error":
        yield notes
