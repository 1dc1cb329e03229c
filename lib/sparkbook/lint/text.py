"""A linter's report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkbook.util.styled import Styled

if TYPE_CHECKING:
    from sparkbook.findings import Findings
    from sparkbook.lint import Report


def lines(report: Report) -> Iterator[Styled | Findings]:
    """Yield the release judged against, the findings, and what was ignored and why."""
    assumed = f", {report.assumed}" if report.assumed else ""
    yield Styled(f"Judged as vLLM {report.release}{assumed}.", "dim")
    if report.said is not None:
        yield Styled(f"Asked: {report.said.judge}, as far as: {report.said.depth}.", "dim")
    yield report.findings
    yield from (Styled(str(item), "dim") for item in report.contradicted)
    for code, reason in report.suppressed:
        yield Styled(f"ignored {code}: {reason}", "dim")
