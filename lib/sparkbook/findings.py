"""The one kind of answer: whatever judges returns findings.

A finding names a rule, says in one sentence what is the matter, shows what it rests on and says
what to change. The same object prints in a terminal (rich), renders on a page (`_repr_html_`) and
goes into JSON.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

Severity = Literal["error", "warning", "info"]
_ORDER: dict[str, int] = {"error": 0, "warning": 1, "info": 2}
_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class Finding(BaseModel):
    """One judgement.

    Attributes:
        rule: stable code of the rule that made it, such as `FLAG101`.
        kind: the problem's name in the project's taxonomy, where it has one (`removed-flag`).
        severity: `error` (will not work), `warning` (works badly or by luck), `info`.
        message: one sentence that names the thing.
        evidence: the line, flag or number that the finding rests on.
        fix: what to type or change.
        why: link to the rule's page.
        source: where the rule's knowledge comes from.
        since, until: first and last vLLM release that the rule speaks of.
        confidence: how sure the rule is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str = Field(pattern=r"^[A-Z]+\d{3}$")
    severity: Severity
    message: str = Field(min_length=1)
    kind: str | None = None
    evidence: str | None = None
    fix: str | None = None
    why: str | None = None
    source: str | None = None
    since: str | None = None
    until: str | None = None
    confidence: Literal["high", "medium", "low"] = "high"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(
            (f"{self.severity:<7}", _STYLE[self.severity]),
            " ",
            (self.rule, "bold"),
            "  ",
            self.message,
        )
        for label, text in self._details():
            yield Text(f"        {label:<8} {text}", style="dim" if label != "fix" else "green")

    def _details(self) -> Iterator[tuple[str, str]]:
        for label in ("evidence", "fix", "source", "why"):
            if text := getattr(self, label):
                yield label, text
        if self.since or self.until:
            yield "releases", f"{self.since or 'first'} to {self.until or 'newest'}"

    def _repr_html_(self) -> str:
        details = "".join(
            f"<dt>{label}</dt><dd>{html.escape(text)}</dd>" for label, text in self._details()
        )
        return (
            f'<div class="finding finding-{self.severity}"><p><strong>{self.severity}</strong>'
            f" <code>{self.rule}</code> "
            f"{html.escape(self.message)}</p>{f'<dl>{details}</dl>' if details else ''}</div>"
        )


class Findings(tuple[Finding, ...]):
    """Findings in the order in which they should be read: errors first, the primary one at the top."""

    def __new__(cls, findings: Iterable[Finding] = ()) -> Findings:
        # sorted() is stable: within a severity the judge's own order, primary first, is kept.
        return super().__new__(cls, sorted(findings, key=lambda finding: _ORDER[finding.severity]))

    @property
    def worst(self) -> Severity | None:
        """The gravest severity among them; None means healthy."""
        return self[0].severity if self else None

    @property
    def summary(self) -> dict[str, int]:
        """How many findings of each severity."""
        return {severity: sum(f.severity == severity for f in self) for severity in _ORDER}

    def to_dict(self, **summary: Any) -> dict[str, Any]:
        """The shape every `--json` answer has; keyword arguments join the summary."""
        return {"findings": [f.model_dump() for f in self], "summary": {**self.summary, **summary}}

    def to_json(self, **summary: Any) -> str:
        """`to_dict` as indented JSON."""
        return json.dumps(self.to_dict(**summary), indent=2, ensure_ascii=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self:
            yield Text("Nothing found.", style="green")
        yield from self

    def _repr_html_(self) -> str:
        return (
            "".join(f._repr_html_() for f in self) or '<p class="finding-none">Nothing found.</p>'
        )
