"""What the guide that this book starts from gets wrong, and the rules that find it
(`book/data/defects.yaml`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkbook import lint
from sparkbook.findings import Finding
from sparkbook.site import book_data


@dataclass(frozen=True)
class Defect:
    """One defect.

    Attributes:
        name: what the guide does or teaches.
        rule: code of the rule that finds it.
        line: a small line that has it, and nothing else of the guide's.
        recipe: the catalogue's recipe whose published line has it; None where only the guide's text
            has it.
    """

    name: str
    rule: str
    line: str
    recipe: str | None = None

    @property
    def finding(self) -> Finding:
        """Return what the rule reports about the line, judged against the file's release."""
        findings = lint.lint(self.line, release=_FILE.release).findings
        return next(finding for finding in findings if finding.rule == self.rule)


@dataclass(frozen=True)
class _Defects:
    release: str
    defects: tuple[Defect, ...]


_FILE = book_data.load("defects", _Defects)
DEFECTS = _FILE.defects
"""Every defect of the guide that a rule can find."""
