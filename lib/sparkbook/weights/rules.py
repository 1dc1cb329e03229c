"""Ways for a download to go wrong, or for a store to be wrong."""

from __future__ import annotations

from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.rules import Family

HUB = Family(
    "HUB",
    "weights",
    "What `sparkbook weights` reports if a download goes wrong. A test makes both examples of each"
    " rule happen on a hub of its own.",
)
HUB.load(Path(__file__).with_name("rules.yaml"))


class WeightsError(SparkbookError):
    """Weights could not be fetched. `finding` says why and what to do; what was downloaded so far
    is kept.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.message} {finding.fix} ({finding.rule})")
        self.finding = finding


def fail(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> WeightsError:
    """Return the error for a rule of this family."""
    return WeightsError(HUB[code].finding(message, evidence, fix))
