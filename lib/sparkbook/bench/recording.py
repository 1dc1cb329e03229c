"""Files that measurements are kept in: written and read with the same care everywhere.

A recording is JSON lines: the first line says what it is about, each further one holds a part of
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from sparkbook.errors import SparkbookError
from sparkbook.util import invalid, limits
from sparkbook.util.files import write_text

T = TypeVar("T")


def write(file: str | Path, head: Any, rest: Iterable[Any]) -> None:
    """Write a recording.

    Raises:
        SparkbookError: the file can't be written.
    """
    write_text(
        file, "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in (head, *rest))
    )


def read(file: str | Path, what: str, make: Callable[[Any, list[Any]], T]) -> T:
    """Read a recording.

    Args:
        what: its name, with an article, for the message.
        make: from the first value and the further ones to what is wanted. Values of another shape
            may make it fail as they like: `KeyError`, `TypeError`, `ValueError` (pydantic's among
                them) and `AttributeError` say that the file is something else.

    Raises:
        SparkbookError: it can't be read, or is not such a file.
    """
    try:
        # Not splitlines(), which also cuts at U+2028 and its like: JSON may hold them as they are.
        head, *rest = [
            json.loads(line) for line in limits.read_text(file).split("\n") if line.strip()
        ]
        return make(head, rest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SparkbookError(f"{file} is not {what}: {invalid.reason(error)}") from None
