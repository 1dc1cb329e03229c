"""The checks of a host for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from sparkbook.util.styled import Hanging

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.host.checks import Report

_STYLES = {"ready": "green", "slow": "yellow", "blocked": "bold red", "not judged": "dim"}


def lines(report: Report) -> Iterator[RenderableType]:
    """Yield a line for each check, then the findings, then the verdict."""
    for result in report.results:
        seconds = "" if result.seconds is None else f"{result.seconds:.2f} s"
        node = f"{result.node}  " if result.node else ""
        verdict = (f"{result.verdict:<10}", _STYLES[result.verdict])
        about = (f"  {seconds:>7}  {node}{result.name:<22}  ", "")
        yield Hanging((verdict, about), result.saw, "dim")
    for finding in report.findings:
        yield Text()
        yield finding
    yield Text()
    yield Text(report.headline, _STYLES[report.verdict])
