"""How much a line weighs that no signature knows: whether it says that something went wrong."""

from __future__ import annotations

import re
from typing import Literal

from sparkbook.logs.reader import Event

Weight = Literal["fatal", "answer", "error", "exit", "warning"]
"""What a line of weight is, the weightiest first: the end of a traceback, an exception, a crash or
a command's refusal; an API's answer that says no; a logger's ERROR; an exit status; a WARNING.
"""

WORDS = frozenset(
    [
        "error",
        "critical",
        "fatal",
        "exception",
        "killed",
        "aborted",
        "panic",
        "segfault",
        "segmentation",
        "unrecognized",
        "warning",
        "exited",
        "exit",
        "traceback",
        "systemexit",
        "denied",
        "failed",
    ]
)
"""Words of lines of weight; the reader looks for endings such as `…Error` by itself."""

_EXCEPTION = re.compile(
    r"^\s*(?:[A-Za-z_]\w*\.)*(?!Error\b|Exception\b(?!: )|Timeout\b)"
    r"(?:[A-Z]\w*(?:Error|Exception|Timeout|Exit|Fault)|Exception)\b"
    r"\d*\s*(?::|\(|$)"
)
_BARE_EXCEPTION = re.compile(r"^\s*(?:[a-z_]\w*\.)+\w*(?:Error|Exception|Empty|Full)\s*:")
_REFUSAL = re.compile(
    r"^(?:[\w./-]{1,40}(?: \w+)?: )?(?:\w+ )?(?:error|fatal)\b(?: response from daemon)?\s*[:!]",
    re.IGNORECASE,
)
_COMPILER = re.compile(r"^\S+(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal |catastrophic )?error\b")
"""How gcc, nvcc and NVRTC begin an error: the file and the line."""
_CRASH = re.compile(
    r"segmentation fault|segfault at|core dumped|fatal python error|terminate"
    r" called|\baborted\b\s*(?:\(|$)|stack smashing|\bpanic(?:ked)?:|std::\w+_error|"
    r"\bassertion\b.{0,200}\bfailed",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r'\\?["\']error\\?["\']\s*:\s*(?:\{|\\?["\'])|\\?["\']object\\?["\']\s*:\s*\\?["\']error'
    r'|error code: [45]\d\d\b|^\{\\?["\']detail\\?["\']\s*:|\b(?:openai|litellm)\.\S*Error\b|'
    r'\bHTTP(?:/[\d.]+)?"? [45]\d\d\b|\bstatus(?:_code)?\W{1,3}[45]\d\d\b',
    re.IGNORECASE,
)
_CLIENT = re.compile(r"^(?:openai|litellm|anthropic)\.", re.MULTILINE)
_EXIT = re.compile(
    r"(?:exit(?:ed|s)?(?: with)?(?: exit)?(?: code| status)?|exit_?code|exit_?status)\W{0,4}"
    r"(?!0\b)(?P<code>-?\d{1,3})\b|code=(?:exited|killed|dumped), status=(?!0/)\d+"
    r"|\bExited \((?!0\))\d+\)",
    re.IGNORECASE,
)
_MINOR = re.compile(
    r"error=ErrorInfo\(|exception ignored|cancellederror|keyboardinterrupt|deprecat|error_inject|no"
    r" errors?\b|errors?=0|\b0 errors?\b",
    re.IGNORECASE,
)
_QUIET = ("INFO", "DEBUG")
_ACCESS = re.compile(r'" (?:[1-5]\d\d)\b')


def weigh(event: Event) -> Weight | None:
    """Return the weight of an event that no signature explains; None for one without any."""
    text = event.text
    first = text.split("\n", 1)[0]
    if is_minor(text) or (event.line.level in _QUIET and not event.is_traceback):
        return None
    if event.is_traceback:
        return "answer" if _CLIENT.search(text) else "fatal"
    if event.line.level == "WARNING":
        return "warning"
    if _ACCESS.search(first) or first.startswith(("  File ", "    ")):
        return None
    if _ANSWER.search(first):
        return "answer"
    if _is_fatal(first):
        return "fatal"
    if event.line.level in ("ERROR", "CRITICAL"):
        return "error"
    return "exit" if _EXIT.search(first) else None


def is_minor(text: str) -> bool:
    """Whether a text uses words of faults and reports none, such as a request that was refused."""
    return bool(_MINOR.search(text))


def _is_fatal(line: str) -> bool:
    return bool(
        _EXCEPTION.match(line)
        or _BARE_EXCEPTION.match(line)
        or _CRASH.search(line)
        or _REFUSAL.match(line)
        or _COMPILER.match(line)
    )


def is_exception(text: str) -> bool:
    """Whether a text is an exception's line."""
    return bool(_EXCEPTION.match(text) or _BARE_EXCEPTION.match(text))
