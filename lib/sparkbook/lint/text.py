"""A linter's report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.lint import Report


def lines(report: Report) -> Iterator[RenderableType]:
    """Yield the release judged against, the findings, and what was ignored and why."""
    assumed = f", {report.assumed}" if report.assumed else ""
    yield Text(f"Judged as vLLM {report.release}{assumed}.", "dim")
    yield report.findings
    for code, reason in report.suppressed:
        yield Text(f"ignored {code}: {reason}", "dim")
