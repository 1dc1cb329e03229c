"""The examples of signatures: how a page shows one, and what the log doctor finds in it."""

from __future__ import annotations

from sparkbook.findings import Findings
from sparkbook.logs.doctor import diagnose
from sparkbook.util.markup import fenced


def show(log: str) -> str:
    """Return an example as Markdown."""
    return fenced(log.replace("\r", "\n"))


def examine(log: str) -> Findings:
    """Return what the log doctor finds in an example."""
    return diagnose(log).findings
