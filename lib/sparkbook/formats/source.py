"""What a user names: a recipe's id, a file, standard input, or the text itself."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import IO

from sparkbook.errors import SparkbookError
from sparkbook.util import limits
from sparkbook.util.documents import MAX_BYTES
from sparkbook.util.shell_text import command_line


def text_of(source: str) -> tuple[str | None, str | None]:
    """Return what a user named: the id of a recipe, or a text.

    Returns:
        The id or the path of an own recipe that is to be loaded by `recipes.load`, else None; and
        the text, None for a catalogue recipe; for a GGUF file, the line that serves it.

    Raises:
        SparkbookError: a file that can't be read, or is too long.
    """
    if source == "-":
        data = limits.read_stream(standard_input(), "standard input", most=MAX_BYTES)
        return None, _text(data, "standard input")
    path = file_of(source)
    if path is None:
        name = source.strip()
        # What is longer than a file's name can be is no name of anything.
        is_text = re.search(r"\s", name) or name.startswith("{") or len(name) > 255
        return (None, source) if is_text else (name, None)
    name = str(path)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            return name, None
        return None, command_line("vllm", "serve", f"./{name}" if name.startswith("-") else name)
    text = file_text(name)
    return (
        name if own_file(text) and path.suffix in (".yaml", ".yml") and path.is_file() else None
    ), text


def file_of(source: str) -> Path | None:
    """Return the file that a user names, spaces and all: a regular one, a pipe such as
    `<(COMMAND)`, or a device; None without one.
    """
    for name in (source, source.strip()):
        path = Path(os.path.expanduser(name))  # noqa: PTH111 (leaves alone what it can't expand, where Path would raise)
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if path.is_file() or path.is_fifo() or path.is_char_device():
                return path
    return None


def naming(source: str) -> contextlib.AbstractContextManager[None]:
    """Put the name of the file that a user named before what is wrong with its text."""
    is_file = source != "-" and file_of(source) is not None
    return limits.naming(source) if is_file else contextlib.nullcontext()


def standard_input() -> IO[bytes]:
    """Return what comes through standard input.

    Raises:
        SparkbookError: it is closed.
    """
    if sys.stdin is None:
        raise SparkbookError("standard input is closed: name a file, or pipe something in")
    return sys.stdin.buffer


def file_text(path: str) -> str:
    """Return the text of a file, within the bounds.

    Raises:
        SparkbookError: it can't be read, or is too long.
    """
    name = os.path.expanduser(path)  # noqa: PTH111 (leaves alone what it can't expand)
    return _text(limits.read_bytes(name, most=MAX_BYTES), path)


def own_file(text: str) -> bool:
    """Return whether a text is a recipe of this playbook."""
    return (
        re.search(r"^(extends|family):", text, re.MULTILINE) is not None
        and re.search(r"^services:", text, re.MULTILINE) is None
    )


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SparkbookError(f"{name} is not UTF-8 text") from None
