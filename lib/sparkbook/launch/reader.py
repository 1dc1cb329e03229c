"""The one reader of launch lines: from a text to the start of a server that it describes.

`convert`, `lint` and `plan` all read through here. It is forgiving: what is wrong with a line is
kept in it, as a mistake. Nothing is executed or fetched; what a shell would fill in stays marked
as not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkbook.errors import SparkbookError
from sparkbook.launch import compose, docker, server
from sparkbook.launch.commands import Command, after, before, left_out, split
from sparkbook.launch.lexer import lex, show
from sparkbook.launch.line import Line, by_preference
from sparkbook.launch.variables import Variables
from sparkbook.util.documents import check_text

_MOST_LINES = 1000
_DEEPEST = 3
"""Levels of scripts inside scripts that are searched for a launch line."""


def read(text: str, env: Mapping[str, str] | None = None) -> Line:
    """Return the launch line of a text: `docker run`, `vllm serve`, a script around one, or a
    compose file. Of several the one that is meant, with the others in it.

    Args:
        text: the text.
        env: for a compose file, the variables of the `.env` file next to it.

    Raises:
        SparkbookError: there is no launch line in the text, or a quote is not closed.
    """
    check_text(text)
    if re.search(r"""^[\s{"']*services["']?\s*:""", text, re.MULTILINE):
        return compose.read(text, env)
    return read_script(text)


def starts_container(text: str) -> bool:
    """Return whether a text looks like one that starts a container."""
    engines = "|".join(sorted(docker.ENGINES))
    return bool(re.search(rf"\b({engines})\s+(-.*\s)?(container\s+)?(run|create)\b", text))


def read_script(text: str) -> Line:
    """Return the launch line of a shell script, or of a line that is one.

    Raises:
        SparkbookError: as for `read`.
    """
    check_text(text)
    lines, problems = _lines(text, {}, 0)
    if not lines:
        if problems:
            raise problems[0]
        beginning = show(" ".join(token.text for token in lex(text)[:3] if not token.operator))
        raise SparkbookError(
            f"there is no launch line in this text, which begins with '{beginning[:60]}':"
            " expected docker run …, vllm serve …, or a compose file"
            if beginning
            else "there is nothing in this text: expected docker run …, vllm serve …, or a compose"
            " file"
        )
    ordered = by_preference(lines)
    line = ordered[0]
    serving = [other for other in ordered[1:] if other.starts]
    line.others = serving if line.starts else ordered[1:]
    if len(lines) + len(problems) > 1:
        _choice(line, ordered[1:], len(problems))
    return line


def _choice(line: Line, others: list[Line], unreadable: int) -> None:
    names = ", ".join(other.image or "vllm serve" for other in others) or "none"
    more = f"; {unreadable} could not be read" if unreadable else ""
    line.remark(
        "CONV205",
        f"The text starts {len(others) + 1 + unreadable} servers or containers; the one with"
        f" {line.image or 'vllm serve'} was taken.",
        f"others: {names}{more}",
    )


def _lines(
    text: str, variables: dict[str, list[str]], depth: int
) -> tuple[list[Line], list[SparkbookError]]:
    """Return the launch lines of a script, and why others in it could not be read.

    Scripts in here-documents, in command substitutions and in quotes are searched where the script
    itself starts nothing.
    """
    shared = Line()
    filler = Variables(shared.remark, variables)
    script = split(filler.fill(lex(text), text), text, depth == 0, shared)
    lines: dict[int, Line] = {}
    problems: list[SparkbookError] = []
    for at, command in enumerate(script):
        try:
            line = _line(command)
        except SparkbookError as error:
            problems.append(command.cut.error() if command.cut else error)
            continue
        if line is not None:
            line.text = text if depth == 0 else ""
            line.remarks[:0] = shared.remarks
            line.mistakes[:0] = shared.mistakes
            lines[at] = line
    if len(lines) > _MOST_LINES:
        raise SparkbookError(
            f"this text starts more than {_MOST_LINES:,} servers: cut it down to those that matter"
        )
    for at, line in lines.items():
        _surround(line, script, at, set(lines))
    if lines or depth == _DEEPEST:
        return list(lines.values()), problems
    inner: list[Line] = []
    for nested in _nested(script):
        more, their_problems = _lines(nested, variables, depth + 1)
        inner += more
        problems += their_problems
    return inner, problems


def _line(command: Command) -> Line | None:
    """Return the line of one command; None where it starts no server and no container."""
    words = command.words
    line = Line()
    start = docker.start_of(words)
    if start is not None:
        docker.read(line, words[start:])
    elif not server.command(line, words):
        return None
    command.remark_on(line)
    return line


def _surround(line: Line, script: list[Command], at: int, lines: set[int]) -> None:
    """Take what the script does before the line, and note what it does after."""
    earlier = [command for index, command in enumerate(script[:at]) if index not in lines]
    # What follows the next launch line is its own.
    end = min((index for index in lines if index > at), default=len(script))
    if line.form == "shell":
        before(line, earlier)
    else:
        left_out(line, earlier)
    after(line, script[at + 1 : end])


def _nested(script: list[Command]) -> list[str]:
    """Return the scripts inside a script: here-documents, command substitutions, quoted ones."""
    texts: list[str] = []
    for command in script:
        for token in command.tokens:
            if token.body:
                texts.append(token.body)
            texts += [
                part[2:-1]
                for part in token.text.split("\0")[1::2]
                if part.startswith("$(") and starts_container(part)
            ]
            if " " in token.text and "\0" not in token.text and starts_container(token.text):
                texts.append(token.text)
    return texts
