"""The examples of signatures: how a page shows one, and what the log doctor finds in it."""

from __future__ import annotations

from collections.abc import Mapping

from sparkbook.findings import Findings
from sparkbook.logs.doctor import diagnose
from sparkbook.logs.together import together
from sparkbook.util.markup import fenced


def show(log: str | Mapping[str, str]) -> str:
    """Return an example, a log or several by name, as Markdown."""
    if isinstance(log, str):
        return fenced(log.replace("\r", "\n"))
    return fenced("\n\n".join(f"==> {name} <==\n{text}" for name, text in log.items()))


def examine(log: str | Mapping[str, str]) -> Findings:
    """Return what the log doctor finds in an example."""
    if isinstance(log, str):
        return diagnose(log).findings
    return together({name: text.encode() for name, text in log.items()}).findings
