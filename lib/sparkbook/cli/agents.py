"""`sparkbook client` and `check-tools`: from a server to the program that uses it."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import WAIT, Json
from sparkbook.cli.output import answer, exit_with, progress
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(app, "client")
def client(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The program. Without it, list them all.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The server's address [default: the one that runs here].")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model name [default: the server's first].")
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with the API key on the client's machine."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the settings of a chat, an agent or a library.

    Nothing is installed or written. The key is never printed: the settings read its file.
    """
    from sparkbook import clients
    from sparkbook.clients import text, which

    if name is None:
        if url or model or key_file:
            raise SparkbookError("--url, --model and --key-file need the NAME of a client")
        listed = list(clients.every().values())
        rows = [{"client": one.name, "title": one.title, "tried": one.tried} for one in listed]
        return answer(as_json, {"clients": rows}, text.table(listed))
    one = clients.find(name)
    settings = which.settings(url, model, key_file)
    answer(as_json, one.to_dict(settings), text.lines(one, settings))


@verb(app, "check-tools", done="Right, or only the model is weak.", bad="The server is wrong.")
def check_tools(
    url: Annotated[str, typer.Argument(metavar="URL", help="A running server.")],
    model: Annotated[
        str | None, typer.Option(help="Served model name [default: the server's first].")
    ] = None,
    turns: Annotated[
        int, typer.Option(min=0, max=1000, help="Turns of the agent; 0 leaves it out.")
    ] = 50,
    timeout: Annotated[
        float, typer.Option(callback=WAIT, help="Seconds to wait for a reply.")
    ] = 300.0,
    as_json: Json = False,
) -> None:
    """Try the tool calls of a server, as an agent sends them.

    Errors are the server's fault, such as a wrong parser. Warnings may be the model's.
    """
    from sparkbook.serve import attach, tool_calls

    if not attach.is_address(url):
        raise SparkbookError(f"'{url}' is not an address such as http://127.0.0.1:8000")
    endpoint = attach.server(url, model or "")
    endpoint = attach.server(url, attach.context_of(endpoint)[0])
    report = tool_calls.check(endpoint, turns=turns, timeout_s=timeout, say=progress)
    answer(as_json, report.to_dict(), [*report.lines, report.findings])
    exit_with(report.findings)
