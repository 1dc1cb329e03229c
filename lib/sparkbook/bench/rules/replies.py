"""What the rules about figures that cannot be ask of a row's replies."""

from __future__ import annotations

from collections.abc import Iterable

from sparkbook.bench.results import Request
from sparkbook.bench.seen import Seen
from sparkbook.rules import Hit


def good(seen: Seen) -> list[Request]:
    return [r for r in seen.cell.requests if r.error is None]


def complete(seen: Seen) -> bool:
    """Return whether every request was answered, so that counts of client and engine can be
    compared.
    """
    figures = seen.cell.figures
    return bool(figures.completed) and not figures.failed and not seen.cell.interrupted


def text_bytes(request: Request) -> int | None:
    """Return bytes of the reply; None where its text was not kept."""
    if request.text_bytes is not None or request.text is None:
        return request.text_bytes
    return len(request.text.encode())


def count_events(request: Request) -> int | None:
    """Return the number of events with tokens; None if a recording may have kept only the first and
    the last.
    """
    if request.chunk_tokens:
        known = len(request.chunk_tokens) == len(request.stamps_s)
    else:
        known = text_bytes(request) is not None
    return len(request.stamps_s) if known else None


def replies(wrong: Iterable[str], message: str) -> Hit | None:
    """Return an error about the replies that the evidence is from; `{}` is their number."""
    evidence = list(wrong)
    return Hit(message.format(len(evidence)), evidence[0]) if evidence else None
