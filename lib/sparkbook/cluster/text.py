"""The ranks of a cluster for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.findings import Findings


def ranks(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Yield a line for each rank."""
    if not rows:
        yield "No rank runs on any node."
    for row in rows:
        about = "  ".join(row[key] for key in ("name", "url", "end") if row[key])
        yield f"{row['state']:<12} {row['host']:<12} {about}"


def fault(findings: Findings, tails: Mapping[str, Iterable[str]]) -> Iterator[RenderableType]:
    """Yield which rank failed first, and the last lines of each."""
    yield findings
    for rank, lines in tails.items():
        yield heading(rank)
        yield from lines


def heading(rank: str) -> str:
    """Return the line above a rank's log."""
    return f"==> {rank} <=="


def stopped(names: Iterable[str], left: Findings) -> Iterator[RenderableType]:
    """Yield what was stopped, and what could not be."""
    yield from (f"{name} is stopped" for name in names)
    if left:
        yield left
