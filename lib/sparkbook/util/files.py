"""A user's file, replaced as a whole: what was in it before stays until the new text is on the
disk.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sparkbook.errors import SparkbookError


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


def spared(text: str, error: SparkbookError, prefix: str = "sparkbook-") -> str:
    """Keep JSON that can't be made again in a temporary file, because its own could not be written.

    Args:
        text: what to keep.
        error: why its own file could not be written.
        prefix: how the temporary file's name begins.

    Returns:
        What to say of both.
    """
    try:
        handle, spare = tempfile.mkstemp(prefix=prefix, suffix=".json")
    except OSError as worse:
        return f"{error}; and no temporary file can be made: {worse.strerror}"
    os.close(handle)
    try:
        write_text(spare, text)
    except SparkbookError as worse:
        Path(spare).unlink(missing_ok=True)
        return f"{error}; and {worse}"
    return f"{error}. All of it is kept in {spare}"


def check_place(file: str | Path) -> None:
    """Check that a file can be written, before the work that fills it.

    Raises:
        SparkbookError: it can't: a folder has its name, or its own folder is missing or not yours.
    """
    path = Path(file)
    if (
        path.is_dir()
        or not path.parent.is_dir()
        or not os.access(path if path.exists() else path.parent, os.W_OK)
    ):
        raise SparkbookError(
            f"{file} can't be written: name a file in a folder that is there and yours"
        )


def _replace(path: Path, data: bytes) -> None:
    """Put a whole file in a file's place; a device, a pipe, or a file in a folder that takes no new
    one, is written as it is.
    """
    if (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    beside.unlink(missing_ok=True)  # a link that was planted there is not followed
    exclusive = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    mode = path.stat().st_mode & 0o7777 if path.exists() else None
    try:
        with os.fdopen(os.open(beside, exclusive, 0o666 if mode is None else 0o600), "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
