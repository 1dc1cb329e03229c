"""The gate: whether a number may be believed. Pure functions from what was seen to findings, and
from findings to a verdict.

`error` makes a cell invalid, `warning` suspect; `info` only remarks. What was not seen is not
judged, and is said to be unknown. The thresholds are the project's own choice; each is next to
its reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkbook.bench.results import Cell, Report, Verdict
from sparkbook.bench.rules import BENCH
from sparkbook.bench.rules.method import faster_when_shared
from sparkbook.bench.seen import Seen
from sparkbook.findings import Finding, Findings


def judge(seen: Seen) -> Findings:
    """Return every finding about a cell, most serious first."""
    rules = [rule for rule in BENCH.rules.values() if rule is not faster_when_shared]
    return Findings(finding for rule in rules for finding in rule.findings(seen))


def verdict(findings: Iterable[Finding]) -> Verdict:
    """`invalid` with an error, `suspect` with a warning, else `valid`."""
    severities = {finding.severity for finding in findings}
    return "invalid" if "error" in severities else "suspect" if "warning" in severities else "valid"


def stamp(cell: Cell, findings: Iterable[Finding]) -> Cell:
    """Return the cell with these findings added, and its verdict renewed. A code that it has
    already is not said twice.
    """
    had = {(f.rule, f.message) for f in cell.findings}
    cell.findings = list(
        Findings([*cell.findings, *(f for f in findings if (f.rule, f.message) not in had)])
    )
    cell.verdict = verdict(cell.findings)
    return cell


def compare_rows(report: Report) -> None:
    """Judge the rows of a report against each other, and stamp those that cannot both be true
    (BENCH308).
    """
    rows = [
        c
        for c in report.cells
        if c.concurrency and c.rate is None and (c.figures.decode_tok_s or c.figures.req_tok_s)
    ]
    for low in rows:
        for high in rows:
            alike = (low.prompt_class, low.label, low.max_tokens, low.context) == (
                high.prompt_class,
                high.label,
                high.max_tokens,
                high.context,
            )
            if not alike or (low.concurrency or 0) >= (high.concurrency or 0):
                continue
            found = list(faster_when_shared.findings(low, high))
            stamp(low, found)
            stamp(high, found)
