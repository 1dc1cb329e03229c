"""What a rule is: a code, a name, a text that becomes its page, two examples that a test runs, a
source, a range of releases, a judgement.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sparkbook.findings import Finding, Severity
from sparkbook.releases import at_least

if TYPE_CHECKING:
    from sparkbook.lint.case import Case

FAMILIES = {
    "FLAG": "Options of vllm serve",
    "ENV": "Environment variables",
    "MODEL": "The model, its parsers and its draft",
    "QUANT": "Quantization",
    "MEM": "Memory",
    "SPEC": "Speculative decoding",
    "IMG": "The image",
    "RUN": "How the container is run",
    "SPARK": "What is specific to GB10",
}


@dataclass(frozen=True)
class Edit:
    """A mechanical repair: the text from `start` to `end` becomes `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Hit:
    """What a rule found in a case. `severity` and `kind` replace the rule's own where they are
    given.
    """

    message: str
    evidence: str | None = None
    fix: str | None = None
    severity: Severity | None = None
    kind: str | None = None
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: stable code, such as `FLAG101`.
        name: its name in words with dashes.
        severity, kind: of its findings.
        source: where its knowledge comes from.
        bad, good: an example that fails and one that passes: a launch line, or the id of a recipe.
        release: the release that the examples are judged against, where it matters.
        since, until: first and last release that the rule speaks of.
        versioned: whether its judgement rests on the release, so that an assumed one has to be
            told.
        confidence: how sure it is.
        judge: the judgement itself.
    """

    code: str
    name: str
    severity: Severity
    source: str
    bad: str
    good: str
    judge: Callable[[Case], Iterator[Hit]] = field(repr=False)
    kind: str | None = None
    release: str | None = None
    since: str | None = None
    until: str | None = None
    versioned: bool = False
    confidence: Literal["high", "medium", "low"] = "high"

    @property
    def family(self) -> str:
        """Letters of the code."""
        return self.code.rstrip("0123456789")

    @property
    def address(self) -> str:
        """Where the rule's page stands in the site."""
        return f"rules/{self.family.lower()}.html#{self.code.lower()}"

    @property
    def text(self) -> str:
        """What it catches and why, in Markdown."""
        return inspect.getdoc(self.judge) or ""

    def applies(self, version: str) -> bool:
        """Whether the rule speaks of a release."""
        return (self.since is None or at_least(version, self.since)) and (
            self.until is None or at_least(self.until, version)
        )

    def findings(self, case: Case) -> Iterator[tuple[Finding, tuple[Edit, ...]]]:
        """The rule's findings in a case, each with its mechanical repair."""
        if not self.applies(case.version):
            return
        for hit in self.judge(case):
            assumed = case.assumed if self.versioned or self.since or self.until else None
            message = (
                f"{hit.message} (judged as vLLM {case.version}: {assumed})"
                if assumed
                else hit.message
            )
            yield (
                Finding(
                    rule=self.code,
                    kind=hit.kind or self.kind,
                    severity=hit.severity or self.severity,
                    message=message,
                    evidence=hit.evidence,
                    fix=hit.fix,
                    why=self.address,
                    source=self.source,
                    since=self.since,
                    until=self.until,
                    confidence=(
                        "medium" if assumed and self.confidence == "high" else self.confidence
                    ),
                ),
                hit.edits,
            )


RULES: dict[str, Rule] = {}
"""Every rule by its code, filled when `sparkbook.lint.rules` is imported."""


def rule(
    code: str,
    name: str,
    severity: Severity,
    *,
    source: str,
    bad: str,
    good: str,
    kind: str | None = None,
    release: str | None = None,
    since: str | None = None,
    until: str | None = None,
    versioned: bool = False,
    confidence: Literal["high", "medium", "low"] = "high",
) -> Callable[[Callable[[Case], Iterator[Hit]]], Callable[[Case], Iterator[Hit]]]:
    """Makes a rule of a function from a case to what is wrong with it."""

    def register(judge: Callable[[Case], Iterator[Hit]]) -> Callable[[Case], Iterator[Hit]]:
        assert code not in RULES, code
        RULES[code] = Rule(
            code,
            name,
            severity,
            source,
            bad,
            good,
            judge,
            kind,
            release,
            since,
            until,
            versioned,
            confidence,
        )
        return judge

    return register
