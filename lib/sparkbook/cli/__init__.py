"""The `sparkbook` command: words for people and JSON for machines over what the library answers.

No logic lives here: one module a group of verbs reads options, calls the library and prints its
answer; texts for people are in `text.py` next to each domain. `verbs.VERBS` says which module has a
verb. A module is imported when one of its verbs is called, and what a verb needs is imported inside
it, so that the command starts at once.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated

import typer

from sparkbook.cli.verbs import EVERY_EXIT, READER_GONE, Verbs
from sparkbook.errors import SparkbookError

__all__ = ["app", "main"]

app = typer.Typer(
    name="sparkbook",
    cls=Verbs,
    help="Serve language models with vLLM on a DGX Spark.",
    epilog=EVERY_EXIT,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command and exit. What the user can set right is one line on standard error and exit
    code 2, never a traceback.
    """
    # Imported modules stay for good: collecting them again and again would take a tenth of the time
    # of a short command.
    gc.set_threshold(100_000, 20, 20)
    _open_streams()
    out = sys.stdout
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal's encoding lacks is shown as "?".
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="sparkbook")
    except SystemExit:
        # Where the reader of a pipe has gone, typer puts another stream here and exits with 1.
        if sys.stdout is not out:
            sys.exit(READER_GONE)
        raise
    except KeyboardInterrupt:  # before the verb began, while its modules were imported
        sys.exit(130)
    except SparkbookError as error:
        _fail(str(error))
    except RecursionError:
        _fail("The input is nested too deeply to be read.")
    except ArithmeticError as error:
        _fail(f"A number in the input is out of range ({error}).")
    except OSError as error:
        # Such as a full disk behind standard output, about which Python would complain again when
        # it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        name = "" if error.filename is None else f"{error.filename}: "
        _fail(name + (error.strerror or str(error)))
    sys.exit(2)


def _open_streams() -> None:
    """Open what the caller has closed: the next file would get the descriptor, and what is printed
    would be written into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w")))


def _fail(message: str) -> None:
    from sparkbook.cli.output import say

    say(f"sparkbook: {message}", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from sparkbook.cli.output import say

        say(f"sparkbook {version('sparkbook')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
