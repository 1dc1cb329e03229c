"""Logs that a user names: files, or `-` for standard input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.formats import standard_input
from sparkbook.logs import diagnose as doctor
from sparkbook.logs.doctor import Diagnosis
from sparkbook.logs.facts import Facts
from sparkbook.logs.together import Together
from sparkbook.logs.together import together as several
from sparkbook.util import limits

MAX_LOG = 100_000_000
"""Bytes of one of several logs, which are read whole; one log alone is read piece by piece."""

_NO_LOG = (
    "is not a log of vLLM: no line of it is known. Give all that the engine printed, as"
    " `docker logs NAME` or `sparkbook logs` shows it"
)


def diagnose(name: str, facts: Facts | None = None) -> Diagnosis:
    """Return the diagnosis of a log.

    Args:
        name: a file, or `-`.
        facts: what is known about the host besides.

    Raises:
        SparkbookError: it can't be read, is empty, or is no log of vLLM.
    """
    shown = "standard input" if name == "-" else name
    try:
        diagnosis = doctor(standard_input() if name == "-" else Path(name), facts)
    except OSError as error:
        raise SparkbookError(f"{shown} can't be read: {error.strerror}") from None
    if diagnosis.verdict == "empty":
        raise SparkbookError(f"{shown} is empty: there is nothing to diagnose")
    if not diagnosis.known:
        raise SparkbookError(f"{shown} {_NO_LOG}")
    return diagnosis


def together(names: Sequence[str], facts: Facts | None = None) -> Together:
    """Return the answer to several logs of one run, named by their files.

    Raises:
        SparkbookError: one can't be read or is no log of a run, or all are empty.
    """
    texts: dict[str, bytes] = {}
    for name in names:
        shown = "standard input" if name == "-" else _short(name, names)
        text = (
            limits.read_stream(standard_input(), shown, most=MAX_LOG)
            if name == "-"
            else limits.read_bytes(name, most=MAX_LOG)
        )
        texts[shown] = text
    run = several(texts, facts)
    written = [one for one in run.members if one.diagnosis.verdict != "empty"]
    if not written:
        raise SparkbookError("Every log is empty: there is nothing to diagnose")
    for member in written:
        if member.has_to_serve and not member.diagnosis.known:
            raise SparkbookError(f"{member.name} {_NO_LOG}")
    return run


def _short(name: str, names: Sequence[str]) -> str:
    """Return a file's own name, if no other log has the same."""
    own = Path(name).name
    return own if sum(Path(one).name == own for one in names) == 1 else name
