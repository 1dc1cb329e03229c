"""Files that measurements are kept in: written and read with the same care everywhere.

A recording is JSON lines: the first line says what it is about, each further one holds a part of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from sparkbook.errors import SparkbookError

T = TypeVar("T")


def write_text(file: str | Path, text: str) -> None:
    """Write a text file. What was in it before stays where that fails.

    Raises:
        SparkbookError: it can't be written.
    """
    try:
        _replace(Path(os.path.realpath(file)), text.encode("utf-8"))
    except OSError as error:
        raise SparkbookError(f"{file} can't be written: {error.strerror}") from None
    except ValueError as error:  # UnicodeError among them
        raise SparkbookError(f"{file} can't be written: {error}") from None


def _replace(path: Path, data: bytes) -> None:
    """Put a whole file in a file's place; a device, a pipe, or a file in a folder that takes no new one, is written as it is."""
    if (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        with contextlib.suppress(FileNotFoundError):
            beside.chmod(path.stat().st_mode & 0o7777)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write(file: str | Path, head: Any, rest: Iterable[Any]) -> None:
    """Write a recording.

    Raises:
        SparkbookError: the file can't be written.
    """
    write_text(file, "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in (head, *rest)))


def read(file: str | Path, what: str, make: Callable[[Any, list[Any]], T]) -> T:
    """Read a recording.

    Args:
        what: its name, with an article, for the message.
        make: from the first value and the further ones to what is wanted. Values of another shape may make it fail as they like:
            `KeyError`, `TypeError`, `ValueError` (pydantic's among them) and `AttributeError` say that the file is something else.

    Raises:
        SparkbookError: it can't be read, or is not such a file.
    """
    try:
        # Not splitlines(), which also cuts at U+2028 and its like: JSON may hold them as they are.
        head, *rest = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").split("\n") if line.strip()]
        return make(head, rest)
    except OSError as error:
        raise SparkbookError(f"{file} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SparkbookError(f"{file} is not {what}: {type(error).__name__}") from None
