"""Read what other people and programs wrote, within bounds: bytes, values, depth and time.

A file may be a device without an end, a reply may have no end, a command may print forever. Every
reader of such input goes through this module, so that none of them costs more than its bound.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from sparkbook.errors import SparkbookError

MAX_FILE = 32_000_000
"""Bytes of a file that a user names, unless the reader states another bound."""
_PIPE_S = 60
MAX_VALUES = 2_000_000
"""Values of a JSON document. Each costs up to 100 bytes of memory."""
MAX_OUTPUT = 4_000_000
"""Bytes that are kept of what a command prints, for each of its two streams."""


@contextlib.contextmanager
def naming(file: str | Path) -> Iterator[None]:
    """Put a file's name before what is wrong with it, unless the message has the name already."""
    try:
        yield
    except SparkbookError as error:
        if re.search(rf"(?<!\w){re.escape(str(Path(file)))}(?!\w)", str(error)):
            raise
        raise SparkbookError(f"{file}: {error}") from None


def read_bytes(file: str | Path, what: str = "", *, most: int = MAX_FILE) -> bytes:
    """Return the content of a file.

    Args:
        what: the file's role with its article, for messages: "the lock".
        most: bytes at most.

    Raises:
        SparkbookError: the file can't be read, is a folder or a device, or has more bytes.
    """
    name = f"{what} {file}".lstrip()
    try:
        path = Path(file).expanduser()
        # Opened without waiting: a pipe that nobody writes to is empty, not a program that hangs.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as stream:
            refuse_device(stream, name)
            return read_stream(stream, name, most=most)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder for ~
        reason = getattr(error, "strerror", None) or error
        raise SparkbookError(f"{name} can't be read: {reason}") from None
    except ValueError:  # a NUL character in the name
        raise SparkbookError(f"{str(file)!r} is not the name of a file") from None


def refuse_device(stream: IO[bytes], name: str) -> None:
    """Raise SparkbookError if an open file is a device, which may have no end; not for
    `/dev/null`.
    """
    status = os.fstat(stream.fileno())
    device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    if device and status.st_rdev != Path(os.devnull).stat().st_rdev:
        raise SparkbookError(f"{name} is a device, not a file")


def read_stream(stream: IO[bytes] | Any, name: str, *, most: int = MAX_FILE) -> bytes:
    """Return what a stream holds.

    Raises:
        SparkbookError: it holds more than `most` bytes.
    """
    parts = []
    left = most + 1
    while left > 0:
        part = stream.read(min(left, 1 << 20))
        if part is None:  # a pipe with a writer that has written nothing yet
            if not select.select([stream], [], [], _PIPE_S)[0]:
                raise SparkbookError(
                    f"{name} is a pipe, and nothing came through it for {_PIPE_S} s"
                )
            continue
        if not part:
            break
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise SparkbookError(
            f"{name} has more than {most / 1e6:g} MB, which no such file has: cut it down to the"
            " part that matters"
        )
    return b"".join(parts)


def read_text(
    file: str | Path, what: str = "", *, most: int = MAX_FILE, errors: str = "strict"
) -> str:
    """Return the text of a file in UTF-8.

    Args:
        errors: `replace` takes bytes that are not UTF-8 as replacement characters.

    Raises:
        SparkbookError: as for `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(file, what, most=most).decode("utf-8", errors)
    except UnicodeDecodeError:
        raise SparkbookError(f"{what} {file}".lstrip() + " is not UTF-8 text") from None


def read_json(file: str | Path, what: str = "", *, most: int = MAX_FILE) -> Any:
    """Return the value of a file of JSON.

    Raises:
        SparkbookError: as for `read_text`, or it is not JSON.
    """
    return json_value(read_text(file, what, most=most), f"{what} {file}".lstrip())


def json_value(text: str, name: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        SparkbookError: it is not JSON, is nested too deeply, or has more than `MAX_VALUES` values.
    """
    # Counted before they are made: commas inside strings count as well, and do no harm.
    if text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        raise SparkbookError(f"{name} has more than {MAX_VALUES:,} values, which no such file has")
    try:
        value = json.loads(text, parse_int=_whole_number)
        if "\\ud" in text or "\\uD" in text:  # half a character can't be written anywhere
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except ValueError as error:
        raise SparkbookError(f"{name} is not JSON: {error}") from None
    except RecursionError:
        raise SparkbookError(f"{name} is nested too deeply") from None


def _whole_number(digits: str) -> int:
    """Return a whole number that a float can be near to: any other breaks the arithmetic later."""
    if len(digits) > 300:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


class Ran(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit status; 124 if it ran out of time, 127 if there is no such command, 125 if it
            printed more than the bound and was killed.
        out, err: its two streams as text, without what exceeds the bound; `err` is the reason where
            `code` is one of these three.
    """

    code: int
    out: str
    err: str


def run(
    words: Sequence[str],
    *,
    timeout_s: float | None,
    most: int = MAX_OUTPUT,
    stdin: str | None = None,
) -> Ran:
    """Run a command and return what it printed. A command that exceeds a bound is killed.

    Args:
        timeout_s: seconds it may take; None is no bound.
        most: bytes that are kept of each stream.
        stdin: text for its standard input; None closes it.
    """
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except (FileNotFoundError, PermissionError):
        return Ran(127, "", f"{words[0]}: not found")
    except ValueError as error:  # a NUL character in a word
        return Ran(127, "", str(error))
    kept = [bytearray(), bytearray()]
    over = threading.Event()
    streams = [process.stdout, process.stderr]
    threads = [
        threading.Thread(target=_drain, args=(stream, buffer, most, over, process.kill))
        for stream, buffer in zip(streams, kept, strict=True)
    ]
    if stdin is not None:
        threads.append(threading.Thread(target=_feed, args=(process.stdin, stdin)))
    for thread in threads:
        thread.daemon = True
        thread.start()
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = 124
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            # A grandchild may hold the stream open: what was read by then is the answer.
            thread.join(1)
    out, err = (bytes(buffer).decode("utf-8", "replace") for buffer in kept)
    if over.is_set():
        return Ran(125, out, f"{words[0]} printed more than {most / 1e6:g} MB and was stopped")
    if code == 124:
        return Ran(124, out, f"{words[0]} gave no answer in {timeout_s:.0f} s")
    return Ran(code, out, err.strip())


def _drain(
    stream: Any, buffer: bytearray, most: int, over: threading.Event, kill: Callable[[], None]
) -> None:
    """Read a stream to its end or to the bound, then kill the command."""
    with stream:
        while part := stream.read1(1 << 16):
            buffer += part[: most - len(buffer)]
            if len(buffer) >= most:
                over.set()
                kill()
                return


def _feed(stream: Any, text: str) -> None:
    try:
        with stream:
            stream.write(text.encode())
    except BrokenPipeError:
        pass  # the command ended without reading all of it
