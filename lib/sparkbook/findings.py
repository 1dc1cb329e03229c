"""The one kind of answer: whatever judges returns findings.

A finding names a rule, says in one sentence what is the matter, shows what it rests on and says
what to change. The same object prints in a terminal (rich), renders on a page (`_repr_html_`) and
goes into JSON.
"""

from __future__ import annotations

import dataclasses
import html
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from sparkbook.util.shell_text import command_line
from sparkbook.util.styled import Hanging

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Severity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
_ORDER: dict[str, int] = {"error": 0, "warning": 1, "info": 2}
_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_CODE = re.compile(r"[A-Z]+\d{3}")

SITE_VARIABLE = "SPARKBOOK_SITE"
"""The variable that names the address of the published site, such as `https://example.org/book`."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One judgement.

    Attributes:
        rule: stable code of the rule that made it, such as `FLAG101`.
        severity: `error` (will not work), `warning` (works badly or by luck), `info`.
        message: one sentence that names the thing.
        kind: the problem's name in the project's taxonomy, where it has one (`removed-flag`).
        evidence: the line, flag or number that the finding rests on.
        fix: what to type or change.
        why: address of the rule's page, relative to the site.
        source: where the rule's knowledge comes from.
        since, until: first and last vLLM release that the rule applies to.
        confidence: how sure the rule is.
    """

    # Of a pydantic model that holds findings: as strict as it is, and read from JSON again.
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    rule: str
    severity: Severity
    message: str
    kind: str | None = None
    evidence: str | None = None
    fix: str | None = None
    why: str | None = None
    source: str | None = None
    since: str | None = None
    until: str | None = None
    confidence: Confidence = "high"

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.rule):
            raise ValueError(f"'{self.rule}' is no code of a rule")
        if self.severity not in _ORDER or self.confidence not in get_args(Confidence):
            raise ValueError(f"{self.rule}: {self.severity}, {self.confidence}")
        if not self.message:
            raise ValueError(f"{self.rule} has no message")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @property
    def page(self) -> str | None:
        """Where the rule's page opens from a terminal: its address if the site's is known, else the
        command that prints it.
        """
        if self.why and self.why.startswith("rules/"):
            site = os.environ.get(SITE_VARIABLE, "").rstrip("/")
            return (
                f"{site}/{self.why}"
                if site
                else command_line("sparkbook", "rules", "show", self.rule)
            )
        return self.why

    def __str__(self) -> str:
        head = f"{self.severity:<7} {self.rule}  {self.message}"
        details = [f"        {label:<8} {text}" for label, text in self._details(self.page)]
        return "\n".join([head, *details])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        severity, rule = (f"{self.severity:<7} ", _STYLE[self.severity]), (self.rule, "bold")
        yield Hanging((severity, rule, ("  ", "")), self.message)
        for label, text in self._details(self.page):
            style = "dim" if label != "fix" else "green"
            yield Hanging(((f"        {label:<8} ", style),), text, style)

    def _details(self, page: str | None) -> Iterator[tuple[str, str]]:
        for label, text in (
            ("evidence", self.evidence),
            ("fix", self.fix),
            ("source", self.source),
            ("why", page),
        ):
            if text:
                yield label, text
        if self.since or self.until:
            yield "releases", f"{self.since or 'first'} to {self.until or 'newest'}"

    def _repr_html_(self) -> str:
        details = "".join(
            f"<dt>{label}</dt><dd>{html.escape(text)}</dd>"
            for label, text in self._details(self.why)
        )
        return (
            f'<div class="finding finding-{self.severity}"><p><strong>{self.severity}</strong>'
            f" <code>{self.rule}</code> "
            f"{html.escape(self.message)}</p>{f'<dl>{details}</dl>' if details else ''}</div>"
        )


class Findings(tuple[Finding, ...]):
    """Findings in reading order: errors first, the primary one at the top."""

    def __new__(cls, findings: Iterable[Finding] = ()) -> Findings:
        # sorted() is stable: within a severity the judge's own order, primary first, is kept.
        return super().__new__(cls, sorted(findings, key=lambda finding: _ORDER[finding.severity]))

    @property
    def worst(self) -> Severity | None:
        """The highest severity among them; None means healthy."""
        return self[0].severity if self else None

    @property
    def summary(self) -> dict[str, int]:
        """How many findings of each severity."""
        return {severity: sum(f.severity == severity for f in self) for severity in _ORDER}

    def errors_since(self, before: Iterable[Finding]) -> list[str]:
        """Return the errors of rules that found nothing before, each in one line with its fix."""
        known = {finding.rule for finding in before}
        return [
            " ".join(filter(None, (f"{finding.rule}: {finding.message}", finding.fix)))
            for finding in self
            if finding.severity == "error" and finding.rule not in known
        ]

    def to_dict(self, **summary: Any) -> dict[str, Any]:
        """The shape every `--json` answer has; keyword arguments join the summary."""
        return {"findings": [f.to_dict() for f in self], "summary": {**self.summary, **summary}}

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "Nothing found."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if not self:
            yield Text("Nothing found.", style="green")
        yield from self

    def _repr_html_(self) -> str:
        return (
            "".join(f._repr_html_() for f in self) or '<p class="finding-none">Nothing found.</p>'
        )
