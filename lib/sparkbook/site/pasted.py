"""The page that takes whatever an owner has: what it is, and the lines of the command that answer.

A file, or what the reader typed into the field, is recognized by its content: a format of a start
(`sparkbook lint` and `sparkbook plan`), or lines that an engine or a program next to it prints
(`sparkbook diagnose`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook import formats
from sparkbook.errors import SparkbookError
from sparkbook.logs import reader, weight
from sparkbook.logs.log_line import parse_line
from sparkbook.util.shell_text import command_line

MARK = "<!-- paste -->"
"""In a page: the field stands here on the site."""

_HEAD = 256 << 10
"""Bytes of a file that are looked at to say what it is."""
_DOCUMENTS = frozenset(formats.FORMATS) - {"docker", "shell"}
"""Formats that are documents: whatever words they hold, they are no log."""
_PROGRAMS = {
    "docker": "output of Docker or another container engine",
    "kernel log": "lines of the kernel's log",
    "download": "the output of a download",
    "client error": "an error that a client got from a server",
}
"""A verdict that says who wrote a log."""
UNKNOWN = (
    "Not recognized. No line of it is one that vLLM, or a program that runs with it, is known to"
    " print, and it contains no launch line and no recipe."
)


@dataclass(frozen=True)
class Recognized:
    """What files are.

    Attributes:
        logs: names of those that are logs.
        starts: name of each that starts vLLM, and the title of its format.
        unknown: names of those that are neither.
    """

    logs: tuple[str, ...]
    starts: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The lines of the command that answer."""
        found = [command_line("sparkbook", "diagnose", *self.logs)] if self.logs else []
        for name, _ in self.starts:
            found += [command_line("sparkbook", verb, name) for verb in ("lint", "plan")]
        return found


def recognize(names: Sequence[str]) -> Recognized:
    """Return what files of the working directory are, by their content.

    Of several files that belong to one run, such as the output of `docker inspect` next to the logs
    of two ranks, those that are no launch line are logs if one of them is.
    """
    kinds = {name: _kind(name) for name in names}
    starts = {name: kind for name, kind in kinds.items() if kind not in ("log", "")}
    rest = [name for name in names if name not in starts]
    logs = rest if any(kinds[name] == "log" for name in rest) else []
    return Recognized(
        tuple(logs),
        tuple((name, formats.FORMATS[kind].title) for name, kind in starts.items()),
        tuple(name for name in rest if name not in logs),
    )


def _kind(name: str) -> str:
    """Return the name of a file's format, `log`, or nothing if it is neither."""
    with Path(name).open("rb") as file:
        head = file.read(_HEAD)
    try:
        kind = formats.detect(head.decode("utf-8", "replace"))
    except SparkbookError:
        kind = ""
    if kind in _DOCUMENTS:
        return kind
    lines = head.splitlines()
    if any(reader.is_known(line) or _weighty(line) for line in lines):
        return "log"
    if kind:
        return kind
    from sparkbook import logs

    return "log" if logs.diagnose(head).known else ""


def _weighty(raw: bytes) -> bool:
    """Whether a line says that something went wrong."""
    line = parse_line(raw)
    return weight.weigh(reader.Event(1, line, line.message)) is not None


def said(found: Recognized, answers: Sequence[dict[str, Any]]) -> list[str]:
    """Return what files are, a sentence each; `answers` are those to the lines of `found`."""
    sentences = []
    if found.logs:
        told = answers[0]["told"]
        sentences.append(_log(found.logs, told["summary"]) if told else UNKNOWN)
    sentences += [f"Recognized: {title}." for _, title in found.starts]
    if found.unknown:
        of = f"{', '.join(found.unknown)}: " if found.logs or found.starts else ""
        sentences.append(f"{of}{UNKNOWN}")
    return sentences


def _log(names: tuple[str, ...], summary: dict[str, Any]) -> str:
    if len(names) > 1:
        return f"Recognized: {len(names)} logs of one run."
    lines, release = summary["lines"], summary["facts"].get("release")
    what = _PROGRAMS.get(summary["verdict"]) or (
        "a log of vLLM" if summary["facts"].get("starts") or release else "lines of a log"
    )
    count = f"{lines:,} line{'s' * (lines != 1)}"
    return f"Recognized: {what}{f' {release}' if release else ''}, {count}."


def block(size: int) -> str:
    """Return the place of the field in a page, and what stands there without scripts.

    Args:
        size: bytes that the first answer loads.
    """
    return (
        f'<div class="sb-paste"><script type="application/json">{json.dumps({"size": size})}'
        "</script><noscript><p>This page needs JavaScript. Without it, run"
        f" <code>{html.escape('sparkbook diagnose FILE')}</code> or <code>sparkbook lint FILE"
        "</code> where sparkbook is installed.</p></noscript></div>"
    )
