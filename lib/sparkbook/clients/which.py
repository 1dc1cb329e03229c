"""Which server a client's settings are for: one that runs here, or one at an address."""

from __future__ import annotations

from pathlib import Path

from sparkbook.clients import Settings
from sparkbook.errors import SparkbookError
from sparkbook.serve import attach, running
from sparkbook.serve.endpoint import Endpoint, key_in

ELSEWHERE = "~/spark.key"
"""Where the key of a server on another machine is expected."""


def settings(
    url: str | None = None, model: str | None = None, key_file: str | None = None
) -> Settings:
    """Return the settings for a server.

    Args:
        url: its address; None: the one server that runs here.
        model: its served model's name; None: the server is asked.
        key_file: where its key is; None: where `serve` put it, or `ELSEWHERE` for another machine.

    Raises:
        SparkbookError: no server is meant, or it does not tell its model's name.
    """
    address = url and attach.server(url, "").url
    with running.engines() as (docker, _):
        here = [one for one in running.status(docker) if address in (None, one.url)]
        if address is None and len(here) != 1:
            names = ", ".join(f"{one.name} at {one.url}" for one in here)
            raise SparkbookError(
                f"several servers run here; choose one with --url: {names}"
                if here
                else "no server runs here. Start one with: sparkbook start. For one elsewhere,"
                " give --url"
            )
        own = here[0] if here else None
        if own and key_file is None:
            key_file = str(running.key_file(docker, own.name))
    address = own.url if own else str(address)
    served, context = model or (own.served if own else ""), None
    server = attach.server(address, served)
    if key_file and Path(key_file).is_file():
        server = Endpoint(address, served, key_in(Path(key_file), key_file))
    try:
        server.served_models()
    except SparkbookError:
        if not served:
            raise
    else:
        served, context = attach.context_of(server)
    return Settings(
        url=address,
        model=served,
        key_file=key_file or str(Path(ELSEWHERE).expanduser()),
        **({"context": context} if context else {}),
    )
