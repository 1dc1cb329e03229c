"""Findings that are made in code, each with a page: the one way in which a family of them is
written.

Rules of the linter and signatures of logs have schemes of their own; whatever else judges writes
its checks like this:

    HOST = Family("HOST", "The machine", intro="What `sparkbook check` looks for.", show=describe)

    @HOST.check("HOST002", "driver-too-old", "error", kind="driver", source="https://…", bad=lambda:
    spark(driver="570.86"), good=spark) def driver_too_old(machine: Machine) -> Iterator[Hit]:
        \"\"\"Images built for CUDA 13 need a driver of branch 580 or later.  ← the text of the
        page: what it catches, and why\"\"\" if machine.branch < 580:
            yield Hit(f"The driver {machine.driver} is too old.", evidence=f"branch
            {machine.branch}", fix="Update DGX OS.")

    HOST.judge(machine)    # every check in the order of the file, as Findings whose `why` is the
    section of the book

To give a new family its page, add `"module:NAME"` to `CODE_FAMILIES` in `sparkbook.site.rule_pages`.
Nothing more: the site then has `rules/<family>.html` with a section a check, and
`tests/site/test_checks.py` holds every check of every listed family to its text, its source and its
two examples. `bad` must make the check speak, `good` must leave it silent and must not be an error
in another way. Both are functions, so that no import pays for examples. Where an example is not
what the checks look at (a log's text, while the check looks at the story told from it), the family
says with `examine` how an example is judged.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkbook.findings import Finding, Findings, Severity

_OPTION_OR_VARIABLE = re.compile(
    r"(?<![\w-])--[a-z][\w-]*(?:\.\w+)*(?!\w)|(?<![\w/.$-])[A-Z][A-Z0-9]*_[A-Z0-9_]+\b"
)

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Hit:
    """What a check found. Fields that are None are the check's own."""

    message: str
    evidence: str | None = None
    fix: str | None = None
    severity: Severity | None = None
    kind: str | None = None
    confidence: Confidence | None = None
    source: str | None = None
    since: str | None = None


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        code, name: `HOST002`, `driver-too-old`.
        severity, kind, confidence: of its findings, where a hit does not say otherwise.
        source: where its knowledge comes from.
        bad, good: make an example that fails, and one that passes.
        call: from what is judged to what is wrong with it; its docstring is the page's text.
        page: name of the family's page.
    """

    code: str
    name: str
    severity: Severity
    source: str
    bad: Callable[[], Any]
    good: Callable[[], Any]
    call: Callable[..., Iterator[Hit]] = field(repr=False)
    page: str
    kind: str | None = None
    confidence: Confidence = "high"

    @property
    def address(self) -> str:
        """Where its section stands in the site."""
        return f"rules/{self.page}.html#{self.code.lower()}"

    @property
    def text(self) -> str:
        """What it catches and why, in Markdown."""
        return inspect.getdoc(self.call) or ""

    def findings(self, *subject: Any) -> Iterator[Finding]:
        """What it says about what is judged."""
        for hit in self.call(*subject):
            yield Finding(
                rule=self.code,
                kind=hit.kind or self.kind,
                severity=hit.severity or self.severity,
                message=hit.message,
                evidence=hit.evidence,
                fix=hit.fix,
                why=self.address,
                source=hit.source or self.source,
                since=hit.since,
                confidence=hit.confidence or self.confidence,
            )


@dataclass(frozen=True)
class Family:
    """The checks that share a page.

    Attributes:
        prefix: what their codes begin with; in lower case the page's name.
        title: the page's heading, behind the prefix.
        intro: the page's first paragraph.
        show: an example as text, for the page.
        examine: all findings of an example; None: the example is what the checks look at.
        checks: by code, in the order of the file.
    """

    prefix: str
    title: str
    intro: str
    show: Callable[[Any], str]
    examine: Callable[[Any], Iterable[Finding]] | None = None
    checks: dict[str, Check] = field(default_factory=dict)

    def check(
        self,
        code: str,
        name: str,
        severity: Severity,
        *,
        source: str,
        bad: Callable[[], Any],
        good: Callable[[], Any],
        kind: str | None = None,
        confidence: Confidence = "high",
    ) -> Callable[[Callable[..., Iterator[Hit]]], Check]:
        """Makes a check of a function and adds it to the family."""

        def register(call: Callable[..., Iterator[Hit]]) -> Check:
            assert code.startswith(self.prefix) and code not in self.checks, code
            self.checks[code] = Check(
                code, name, severity, source, bad, good, call, self.prefix.lower(), kind, confidence
            )
            return self.checks[code]

        return register

    def judge(self, *subject: Any) -> Findings:
        """What all checks say."""
        return Findings(
            finding for check in self.checks.values() for finding in check.findings(*subject)
        )

    def examined(self, example: Any) -> list[Finding]:
        """What is found in an example, by the family's own way."""
        return list((self.examine or self.judge)(example))

    def page(self, check: Check) -> str:
        """The section of one check, in Markdown; what is said about an example is what the family
        says now.
        """
        examples = []
        for title, make in (("Fails", check.bad), ("Passes", check.good)):
            example = make()
            examples.append(
                (title, f"```text\n{self.show(example).strip()}\n```", self.examined(example))
            )
        return section_page(
            check.code,
            check.name,
            (self.title, check.severity),
            check.text,
            examples,
            check.source,
            check.kind,
        )


def section_page(
    code: str,
    name: str,
    about: Iterable[str],
    text: str,
    examples: Iterable[tuple[str, str, Iterable[Finding]]],
    source: str,
    kind: str | None = None,
) -> str:
    """The page of one code, in Markdown, in the one form that all families share.

    Args:
        code, name: of the heading.
        about: what stands under it: the family's title, the severity, the releases.
        text: what it catches and why.
        examples: title, block of Markdown, and all that is found in it; shown is what this code
            says.
        source: where its knowledge comes from; an address becomes a link.
        kind: the problem's name in the project's taxonomy.
    """
    parts = [f"# {code}: {name}", f"*{' · '.join(about)}*", text.strip()]
    for title, block, found in examples:
        said = [
            f"- **{f.severity}**: {marked(f.message.rstrip('.'))}."
            + (f" Fix: {marked(f.fix)}" if f.fix else "")
            for f in found
            if f.rule == code
        ]
        parts += [f"## {title}", block, *(["\n".join(said)] if said else [])]
    parts += [
        "## Source",
        f"<{source}>" if source.startswith("http") and " " not in source else source,
    ]
    return "\n\n".join([*parts, *([f"Kind: `{kind}`."] if kind else [])]) + "\n"


def marked(text: str) -> str:
    """A text in Markdown as it stands, in which options and environment variables are code, whether
    its author marked them or not.
    """
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        plain = pieces[i].replace("<", "&lt;").replace("*", "\\*")
        pieces[i] = _OPTION_OR_VARIABLE.sub(r"`\g<0>`", plain)
    return "`".join(pieces)
