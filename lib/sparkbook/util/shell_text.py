"""Shell text, written in one place: words go in, quoted text comes out.

Whatever a person may paste or a shell reads is put together here: the launch lines, the commands in
the fixes of findings, the scripts that a node runs. No other module builds a command out of text
and values; a test reads the syntax trees of the library for it.

A value may come from a stranger's recipe. In a shell, quotes are enough. A terminal without
bracketed paste takes control characters, and in the C locale every byte above 126, for keys: Tab
completes, and some keys expand the line that stands there. Text for a terminal is therefore
printable ASCII, whatever else a word holds is written as `$'\\xNN'`.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal

from sparkbook.errors import SparkbookError

_SURROGATE = re.compile("[\ud800-\udfff]")
# No shell word can hold a NUL character, so between two of them stands what the shell fills in.
MARK = "\0"
HOME = f"{MARK}$HOME{MARK}"
"""The caller's home folder, as part of a word."""
USER = f"{MARK}$USER{MARK}"
"""The caller's name, as part of a word."""
_EXPANSIONS = re.compile(f"({re.escape(HOME)}|{re.escape(USER)})")
_KEYS = re.compile(r"[^\x20-\x7e]")
_KEYS_BUT_LINES = re.compile(r"[^\x20-\x7e\n]")

Reader = Literal["terminal", "lines", "script"]
"""Who reads the text: a shell in a terminal; the same, with line breaks as they are, for a script
inside a word; or a POSIX shell that nobody types into.
"""


def check_writable(text: str) -> None:
    """Refuse what no command line can hold.

    Raises:
        SparkbookError: the text holds a NUL character, or half of a UTF-16 pair.
    """
    if _SURROGATE.search(text):
        raise SparkbookError(
            f"{text!r} holds half of a UTF-16 pair, which is no text: save the file as UTF-8"
        )
    if MARK in text:
        raise SparkbookError(
            f"{text!r} holds a NUL character, which no command line can hold: take it out"
        )


def mark_home(text: str) -> str:
    """Return a launch's string with its leading `~` marked, ready to be quoted.

    Raises:
        SparkbookError: no command line can hold the text.
    """
    check_writable(text)
    return HOME + text[1:] if text == "~" or text.startswith("~/") else text


def quote(marked: str, tilde: bool = True, reader: Reader = "terminal") -> str:
    """Return one word, quoted only where it must be.

    Args:
        marked: the word; a marked home comes out as `~` at the start (where allowed), else as
            `"$HOME"`.
        tilde: whether a shell expands a `~` at this place.
        reader: who reads the text.

    Raises:
        SparkbookError: no command line can hold the word.
    """
    if tilde and (marked == HOME or marked.startswith(f"{HOME}/")):
        rest = marked[len(HOME) + 1 :]
        return ("~/" if marked != HOME else "~") + (quote(rest, False, reader) if rest else "")
    if not marked:
        return "''"
    parts = []
    for part in _EXPANSIONS.split(marked):
        if part in (HOME, USER):
            parts.append(f'"{part.strip(MARK)}"')
        elif part:
            parts.append(_quoted(part, reader))
    return "".join(parts)


def _quoted(text: str, reader: Reader) -> str:
    check_writable(text)
    keys = _KEYS if reader == "terminal" else _KEYS_BUT_LINES
    if reader == "script" or not keys.search(text):
        return shlex.quote(text)
    return "$'" + "".join(_escaped(character) for character in text) + "'"


def _escaped(character: str) -> str:
    """Return a character for `$'…'`. A quote and an exclamation mark are escaped as bytes, so that
    bash's history never takes them for its own.
    """
    if " " <= character <= "~" and character not in "\\'!":
        return character
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
    return short.get(character) or "".join(f"\\x{byte:02x}" for byte in character.encode())


def quote_inside(marked: str) -> str:
    """Return one word for a script that is a word itself and quoted later; homes stay marked."""
    return shlex.quote(marked)


def assignment(name: str, value: str, tilde: bool = True) -> str:
    """Return `NAME=VALUE`, with the value's leading `~` as the caller's home.

    Args:
        name, value: of the variable.
        tilde: whether a shell expands a `~` at this place.

    Raises:
        SparkbookError: the name is none of a variable, or no command line can hold the value.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise SparkbookError(f"{name!r} is not the name of an environment variable")
    return f"{name}={quote(mark_home(value), tilde)}"


def export_line(name: str, value: str) -> str:
    """Return the command that exports a variable; raises as `assignment` does."""
    return " ".join(("export", assignment(name, value)))


def command_line(*words: object) -> str:
    """Return a command to paste.

    Args:
        words: program and arguments; a `~` is only expanded where `mark_home` marked it.

    Raises:
        SparkbookError: no command line can hold one of them.
    """
    return " ".join(quote(str(word)) for word in words)


def script_line(*words: object) -> str:
    """Return a command for a script, or for the shell at the other end of ssh."""
    return " ".join(quote(str(word), False, "script") for word in words)


_ANSI = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|x([0-9a-fA-F]{1,2})|([0-7]{1,3})"
    r"|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8}))"
)
_SHORT = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


def ansi_text(inside: str) -> str | None:
    """Return what stands between `$'` and `'` as bash reads it; None if only bash knows: an escape
    that is not known here, bytes that are no UTF-8, or a NUL, at which bash stops.
    """
    found, at = b"", 0
    try:
        while at < len(inside):
            if inside[at] != "\\":
                found += inside[at].encode()
                at += 1
            elif match := _ANSI.match(inside, at):
                short, byte, octal, *points = match.groups()
                if short:
                    found += _SHORT[short].encode()
                elif byte or octal:
                    found += bytes([int(byte, 16) if byte else int(octal, 8) & 255])
                else:
                    found += chr(int(points[0] or points[1], 16)).encode()
                at = match.end()
            else:
                return None
        return None if b"\0" in found else found.decode()
    except (ValueError, OverflowError):
        return None
