"""What others reported: public reports that resemble a log, and known-bad combinations that it
has."""

from __future__ import annotations

import re
from typing import Any

from sparkbook.findings import Finding
from sparkbook.logs import reports
from sparkbook.logs.facts import Facts
from sparkbook.logs.states import known_combination, similar_report
from sparkbook.logs.story import Story
from sparkbook.releases import known_bad

_MOST = 3
_CLOSE = 24.0
"""A report with a lower score resembles a log by its subject only."""
_SINCE = "2025"
"""Older reports are about another engine."""


def similar(texts: list[str], kind: str | None, known: bool) -> list[Finding]:
    """Return up to three public reports that resemble the lines of weight of a log.

    Args:
        texts: those lines, the primary fault first.
        kind: the primary fault's kind, if it has one.
        known: whether the cause is known; then only reports of the same kind are shown.
    """
    found = reports.scored("\n".join(texts), kind=kind)
    chosen = [
        report
        for report, score in found
        if score >= _CLOSE and (not known or report.kind == kind) and report.date >= _SINCE
    ][:_MOST]
    return [finding for report in chosen for finding in similar_report.findings(report)]


def combinations(story: Story, facts: Facts) -> list[Finding]:
    """Return the known-bad combinations that the log and the facts about the host show."""
    if not story.args and story.model is None:
        return []
    given: dict[str, Any] = {
        "release": re.sub(r"(\d+\.\d+\.\d+).*", r"\1", story.release) if story.release else None,
        "model": story.model,
        "options": story.args,
        "gpu": _first(r"\b(GB10|GB\d00|[HB]\d00|RTX PRO \d+)\b", facts.text) or story.gpu,
        "driver": _first(r"driver\W{1,12}(\d{3}\.\d+(?:\.\d+)?)", facts.text),
        "kernel": _first(r"kernel\W{1,12}(\d+\.\d+\.\d+\S*?)[\"\s,]", facts.text),
    }
    found = known_bad.matching(**given)[:_MOST]
    return [finding for one in found for finding in known_combination.findings(one)]


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.IGNORECASE)
    return match[1] if match else None
