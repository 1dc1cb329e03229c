"""`sparkbook proxy`: a server for others, with TLS and a key for each user."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, folder
from sparkbook.cli.verbs import alone, verb

app = alone()


@verb(app, "proxy")
def proxy(
    kind: Annotated[str, typer.Argument(metavar="caddy|nginx", help="The program.")],
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Name or IPv4 address that clients use.")
    ],
    user: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="Give this user a key. Repeatable.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="USER", help="Delete this user's key; with --user, replace it."),
    ] = None,
    url: Annotated[
        str, typer.Option(help="The server's address on this machine.")
    ] = "http://127.0.0.1:8000",
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with its API key [default: your containers' key]."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The proxy's port.")] = 443,
    certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your own certificate, with its chain.")
    ] = None,
    certificate_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The private key of --certificate.")
    ] = None,
    max_body: Annotated[str, typer.Option(metavar="MIB", help="Largest request.")] = "32m",
    at_once: Annotated[
        int,
        typer.Option(min=1, max=10000, help="Open requests: nginx of each user, Caddy of all."),
    ] = 8,
    rate: Annotated[
        int | None,
        typer.Option(
            min=1, max=100000, help="Requests a minute of each user, nginx only [default: 60]."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--folder", metavar="DIR", help="Write the files here [default: your state]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the configuration of a proxy with TLS and keys.

    Only /v1 and /health pass. Files are written into a folder of yours; the commands that install
    them are printed. Users keep their keys when the same line runs again.
    """
    from pathlib import Path

    from sparkbook import proxy as proxies
    from sparkbook.serve.endpoint import key_in, own_key

    wanted = proxies.Wanted(
        kind=kind,  # type: ignore[arg-type]  # it refuses what is none
        host=host,
        upstream=url,
        port=port,
        certificate=certificate,
        certificate_key=certificate_key,
        max_body=max_body,
        at_once=at_once,
        rate=rate,
    )
    key = key_in(Path(key_file), key_file) if key_file else own_key()[0]
    made, keys = proxies.write(
        wanted, key, add=user or (), without=without or (), folder=folder(where)
    )
    address = f"https://{host}" + (f":{port}" if port != 443 else "")
    steps, trust = wanted.steps(made), wanted.trust()
    value = {
        "url": address,
        "folder": str(made),
        "users": {name: str(file) for name, file in keys.items()},
        "steps": steps,
        "trust": trust,
        "configuration": wanted.text(),
    }
    lines = [f"folder   {made}", "install"]
    lines += [f"  {step}" for step in steps]
    lines += [f"keys     one for each user; {address} takes no other"]
    lines += [f"  {name:<10} {file}" for name, file in keys.items()]
    lines += [f"trust    clients need this file: {trust}"] * (trust is not None)
    answer(as_json, value, lines)
