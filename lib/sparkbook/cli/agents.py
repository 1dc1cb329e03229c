"""`sparkbook start`, `client` and `check-tools`: from a new machine to the program that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkbook.cli.options import WAIT, Json
from sparkbook.cli.output import answer, exit_with, progress, say, show, wants_bar
from sparkbook.cli.servers import Deadline, DryRun, Port, run_server
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from rich.console import RenderableType

app = alone()

STEP = "Leave a step out: check, fetch, serve or ask. Repeatable."


@verb(
    app,
    "start",
    done="It answers.",
    bad="A step failed; the same line again resumes.",
    interrupted="Interrupted; the same line again resumes.",
)
def start(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe ID, or a recipe file.")
    ] = None,
    use: Annotated[str | None, typer.Option(help="To choose a recipe: chat, agent or any.")] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory available for the server, GiB.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print the settings of this client.")
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar="STEP", help=STEP)] = None,
    port: Port = None,
    deadline: Deadline = 1800.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Check, fetch, serve and ask a first question.

    Without a RECIPE it lists those that fit, and asks in a terminal. Needs no root. Given again,
    the same line goes on: weights that are here and a server that runs stay as they are.
    """
    import sys

    from sparkbook import clients
    from sparkbook import start as steps
    from sparkbook.clients import text

    steps.known(client, skip or ())  # before the questions
    if recipe is None:
        ask = sys.stdin is not None and sys.stdin.isatty() and not as_json
        try:
            recipe, client, memory_gib = _choose(use, memory_gib, client, as_json, ask=ask)
        except typer.Abort:  # Ctrl-C or Ctrl-D at a question
            raise typer.Exit(130) from None
    elif use:
        raise SparkbookError("--use chooses a recipe, and one is named: leave one of them out")
    wanted = steps.Wanted(
        recipe=recipe,
        client=client,
        skip=tuple(skip or ()),
        memory_gib=memory_gib,
        port=port,
        deadline_s=deadline,
    )

    def show(started: steps.Started) -> None:
        lines: list[RenderableType] = []
        lines += [f"{name:<8} {value}" for name, value in started.server.items() if value]
        lines += [f"answer   {started.answer}"] * bool(started.answer)
        lines += [f"tool     {started.call}"] * bool(started.call)
        if wanted.client and started.settings:
            lines += ["", *text.lines(clients.find(wanted.client), started.settings)]
        elif started.settings:
            lines += ["", "For the settings of a program: sparkbook client NAME"]
        answer(as_json, started.to_dict(wanted.client), lines)

    try:
        if dry_run:
            plan = dict(steps.dry(wanted))
            heads = [[f"== {step}", *lines, ""] for step, lines in plan.items()]
            return answer(as_json, {"steps": plan}, [line for part in heads for line in part])
        bar = wants_bar(as_json)
        run_server(lambda: steps.run(wanted, say=progress, show=show, bar=bar))
    except steps.StepFailed as error:
        answer(as_json, error.findings.to_dict(step=error.step), [error.findings])
        say(f"sparkbook: {error}", err=True)
        raise typer.Exit(1) from None


def _choose(
    use: str | None, memory_gib: float | None, client: str | None, as_json: bool, *, ask: bool
) -> tuple[str, str | None, float | None]:
    """Return the recipe, the client and the memory that the user chooses in a terminal."""
    from sparkbook import clients
    from sparkbook import start as steps

    if ask and use is None:
        show(*(f"  {name:<6} {what}" for name, what in steps.USES.items()))
        use = typer.prompt("What for", default="agent")
    if ask and memory_gib is None:
        text = "Memory for the server in GiB, or 0 for an empty Spark"
        memory_gib = typer.prompt(text, type=float, default=0.0) or None
    found = steps.candidates(use or "any", memory_gib)
    speeds = [steps.speed_of(planned) for _, planned in found]
    words = [f"{speed:>4.0f} tok/s (estimate)" if speed else "speed unknown" for speed in speeds]
    rows = [
        f"  {number:>3}  {recipe.id:<46}  {word:<21}  {planned.verdict}"
        for number, ((recipe, planned), word) in enumerate(zip(found, words, strict=True), 1)
    ]
    if not ask:
        listed = [
            {"recipe": recipe.id, "tok_s": speed, "verdict": planned.verdict}
            for (recipe, planned), speed in zip(found, speeds, strict=True)
        ]
        head = "Recipes that fit or may fit, by their newest source, of one day the fastest first:"
        answer(as_json, {"recipes": listed}, [head, *rows])
        raise SparkbookError("name a recipe: sparkbook start RECIPE")
    show(*rows)
    number = typer.prompt("Which one", type=int, default=1)
    if not 1 <= number <= len(found):
        raise SparkbookError(f"{number} is not in the list, which ends with {len(found)}")
    if client is None:
        show("  " + " ".join(clients.every()))
        client = typer.prompt("Settings for which program", default="curl")
    return found[number - 1][0].id, client, memory_gib


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

    endpoint = attach.server(url, model or "")
    endpoint = attach.server(url, attach.context_of(endpoint, min(timeout, 10.0))[0])
    report = tool_calls.check(endpoint, turns=turns, timeout_s=timeout, say=progress)
    answer(as_json, report.to_dict(), [*report.lines, report.findings])
    exit_with(report.findings)
