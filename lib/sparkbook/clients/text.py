"""A client's settings for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.clients import Client, Settings


def lines(client: Client, settings: Settings) -> Iterator[RenderableType]:
    """Yield the settings of a client, ready to be copied, then what to know."""
    yield Text(f"{client.title} at {settings.url}", style="bold")
    if client.install:
        yield f"install   {client.install}"
    for block in client.blocks(settings):
        yield ""
        yield Text(f"{block.title}{f': {block.file}' if block.file else ''}", style="bold")
        yield block.text.rstrip("\n")
    if client.notes:
        yield ""
    for note in client.notes:
        yield f"note      {note}"
    yield f"source    {client.source}, read {client.date}"
    if client.tried:
        yield f"tried     {client.tried}"


def table(clients: Iterable[Client]) -> Iterator[str]:
    """Yield a line for each client."""
    for client in clients:
        tried = f"tried with {client.tried}" if client.tried else "not run here"
        yield f"{client.name:<12}  {client.title:<26}  {client.api:<20}  {tried}"
