"""What verbs print with: a terminal that keeps lines whole in a pipe, JSON, and the one way to give
a judgement.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer

from sparkbook.util.printable import printable, printable_json, without_colors

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import (
        Console,
        ConsoleOptions,
        ConsoleRenderable,
        RenderableType,
        RenderResult,
    )

    from sparkbook.findings import Findings

listeners: list[Callable[[dict[str, Any]], object]] = []
"""Called with the JSON of each answer, whatever is printed: a page shows both."""


def terminal(*, stderr: bool = False) -> Console:
    """Return the terminal. In a pipe or a file each line stays one line, so that grep and cut find
    it whole.
    """
    from rich.console import Console

    console = Console(highlight=False, stderr=stderr)
    # COLUMNS=0 and the like would leave room for nothing.
    width = max(console.width, 20) if console.is_terminal else 1000
    console = Console(highlight=False, stderr=stderr, width=width)
    console.push_render_hook(PrintableText())  # type: ignore[arg-type]  # its base class would import rich
    console.on_broken_pipe = _reader_gone  # type: ignore[method-assign]  # rich would exit with 1
    return console


def _reader_gone() -> None:
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class PrintableText:
    """rich's hook that makes the text of whatever is printed printable; styles stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(one) for one in renderables]


class _Printable:
    def __init__(self, renderable: ConsoleRenderable):
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for one in console.render(self._renderable, options):
            yield one if one.control else Segment(printable(one.text), one.style)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, on standard output or standard error."""
    typer.echo(printable(text), err=err, nl=nl)


def print_bytes(piece: bytes) -> None:
    """Print a piece of a log at once: as it is into a file or a pipe, printable on a terminal."""
    if sys.stdout.isatty():
        say(without_colors(piece.decode("utf-8", "replace")), nl=False)
    else:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def show(*lines: RenderableType, console: Console | None = None) -> None:
    """Print lines and findings; strings are printed as they are."""
    if console is None:
        from sparkbook.findings import Finding, Findings
        from sparkbook.util.styled import Styled

        plain = all(isinstance(line, str | Finding | Findings | Styled) for line in lines)
        if plain and not sys.stdout.isatty() and not os.environ.get("FORCE_COLOR"):
            # Without the import of rich, which takes as long as all of `sparkbook lint`.
            for line in lines:
                say(str(line))
            return
        console = terminal()
    for line in lines:
        whole = isinstance(line, str)
        console.print(line, markup=False, emoji=False, soft_wrap=whole, crop=False)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def answer(as_json: bool, value: dict[str, Any], lines: Iterable[RenderableType]) -> None:
    """Print an answer, for machines or for people.

    Args:
        value: the JSON.
        lines: the text; an iterator is not started if the answer is JSON.
    """
    for listener in listeners:
        listener(value)
    if as_json:
        print_json(value)
    else:
        show(*lines)


def exit_with(findings: Findings) -> None:
    """Exit with 1 if a finding is an error."""
    if findings.worst == "error":
        raise typer.Exit(1)


def progress(text: str) -> None:
    """Print a line about what goes on, on standard error, if anybody still reads it."""
    with contextlib.suppress(OSError):
        say(text, err=True)


def wants_bar(as_json: bool) -> bool:
    """Return whether a progress bar has a reader."""
    return not as_json and sys.stderr.isatty()


def text_of(file: str) -> str:
    """Return the text of a file; `-` is standard input. Bytes that are not UTF-8 are replaced.

    Raises:
        SparkbookError: it cannot be read.
    """
    from sparkbook.formats import standard_input
    from sparkbook.util import limits

    if file != "-":
        return limits.read_text(file, errors="replace")
    data = limits.read_stream(standard_input(), "standard input")
    return data.decode("utf-8", errors="replace")


def folder(name: str | None) -> Path | None:
    """Return a folder that the user named, with `~` expanded."""
    from pathlib import Path

    return None if name is None else Path(name).expanduser()
