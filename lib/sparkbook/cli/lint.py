"""`sparkbook lint` and `sparkbook convert`: a recipe or a launch line, judged and rewritten."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Input, Json
from sparkbook.cli.output import answer, exit_with, print_json, say, show, terminal, text_of
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(app, "lint", done="No errors; there may be warnings.", bad="There are errors.")
def lint(
    source: Input,
    release: Annotated[
        str | None, typer.Option(help="vLLM release to judge against [default: the image's].")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODES", help="Rule codes to ignore, comma-separated."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Make mechanical repairs in the file; print the changes.")
    ] = False,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask vLLM itself too; takes 5 to 10 seconds more.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Judge a recipe or a launch line against a vLLM release."""
    from sparkbook import lint as linter
    from sparkbook.lint import text

    if ask and fix:
        raise SparkbookError("--ask and --fix can't be used together: mend first, then ask")
    codes = [code for words in ignore or [] for code in words.upper().replace(",", " ").split()]
    said = None
    if ask:
        from sparkbook import oracle

        source = text_of(source) if source == "-" else source  # it is read twice
        said = oracle.ask_config(source, release=release)
    report = linter.lint(source, release, codes, said)
    changes: dict[str, str] = {}
    if fix:
        from sparkbook.lint.mending import mend

        report, changes["diff"] = mend(source, report, release, codes)
    if changes and not as_json:
        say(changes["diff"], nl=False)
    answer(as_json, report.to_dict() | changes, text.lines(report))
    exit_with(report.findings)


@verb(app, "convert")
def convert(
    source: Input,
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="Format to write; 'list' lists them all.")
    ],
    env_file: Annotated[
        str | None, typer.Option("--env-file", metavar="FILE", help=".env file of a compose file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a recipe or a launch line in another format.

    The text goes to standard output, the report of what was lost to standard error.
    """
    from sparkbook import formats
    from sparkbook.formats import compose, text
    from sparkbook.util.limits import naming

    if to == "list":
        for format_ in formats.FORMATS.values():
            say(f"{format_.name:<18} {format_.title}")
        return
    if to not in formats.FORMATS:
        accepted = ", ".join(formats.FORMATS)
        raise SparkbookError(f"Unknown format '{to}'. --to accepts: {accepted}")
    env = None
    if env_file:
        with naming(env_file):
            env = compose.read_env(formats.file_text(env_file))
    read = formats.resolve(source, env)
    written = formats.write(read.recipe, to)
    if as_json:
        print_json(text.to_dict(read, written))
        return
    say(written.text, nl=False)
    if read.findings or written.findings:
        show(*text.losses(read, written), console=terminal(stderr=True))
