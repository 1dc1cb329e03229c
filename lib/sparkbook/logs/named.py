"""A log that a user names: a file, or `-` for standard input."""

from __future__ import annotations

from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.formats import standard_input
from sparkbook.logs import diagnose as doctor
from sparkbook.logs.doctor import Diagnosis
from sparkbook.logs.facts import Facts


def diagnose(name: str, facts: Facts | None = None) -> Diagnosis:
    """Return the diagnosis of a log.

    Args:
        name: a file, or `-`.
        facts: what is known about the host besides.

    Raises:
        SparkbookError: it can't be read, is empty, or is no log of vLLM.
    """
    shown = "standard input" if name == "-" else name
    if name != "-" and (Path(name).is_char_device() or Path(name).is_block_device()):
        raise SparkbookError(f"{name} is a device, not a file")
    try:
        diagnosis = doctor(standard_input() if name == "-" else Path(name), facts)
    except OSError as error:
        raise SparkbookError(f"{shown} can't be read: {error.strerror}") from None
    if diagnosis.verdict == "empty":
        raise SparkbookError(f"{shown} is empty: there is nothing to diagnose")
    if not diagnosis.known:
        raise SparkbookError(f"{shown} is not a log of vLLM: no line of it is known")
    return diagnosis
