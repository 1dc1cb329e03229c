"""What a rule of the linter has besides what every rule has: a release for its examples, and
mechanical repairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sparkbook.findings import Finding
from sparkbook.releases import at_least
from sparkbook.rules import Edit, Family, Hit, Rule

if TYPE_CHECKING:
    from sparkbook.lint.case import Case


class Example(NamedTuple):
    """An example of a rule.

    Attributes:
        line: a launch line, the id of a recipe, or `EXAMPLE:NAME` for a recipe in `lint/examples`.
        release: the release that it is judged against; None: the one that the line names.
    """

    line: str
    release: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class LintRule(Rule):
    """One rule of the linter; its function takes a `Case`.

    Attributes:
        release: the release that the examples are judged against, where it matters.
        versioned: whether the judgement rests on the release, so that a finding has to name an
            assumed one, and is no error where the image may hold a fork.
        claims: `refused` where the rule says that vLLM's parser or configuration refuses the line,
            `perhaps` where that depends on a file which the line does not show;
            `sparkbook.lint.proofs` holds it to that.
    """

    release: str | None = None
    versioned: bool = False
    claims: Literal["refused", "perhaps"] | None = None

    def example(self, which: Literal["fails", "passes"]) -> Any:
        """The example with its release."""
        return Example(super().example(which), self.release)

    def applies(self, version: str) -> bool:
        """Whether the rule applies to a release."""
        return (self.since is None or at_least(version, self.since)) and (
            self.until is None or at_least(self.until, version)
        )

    def repairs(self, case: Case) -> Iterator[tuple[Finding, tuple[Edit, ...]]]:
        """Yield the findings in a case, each with its mechanical repair."""
        if not self.applies(case.version) or self.judge is None:
            return
        assumed = case.assumed if self.versioned or self.since or self.until else None
        hits = self.judge(case) or ()
        for hit in (hits,) if isinstance(hits, Hit) else hits:
            finding = self.finding(hit)
            if assumed:
                note = f" (judged as vLLM {case.version}: {assumed})."
                confidence = "medium" if finding.confidence == "high" else finding.confidence
                finding = replace(
                    finding,
                    message=finding.message.removesuffix(".") + note,
                    confidence=confidence,
                )
            edits = hit.edits
            if self.versioned and finding.severity == "error" and case.fork:
                # What no release has, a fork or the next release may have.
                fix = f"Ask the image, which may hold a fork of vLLM: {case.asked}."
                finding, edits = replace(finding, severity="warning", fix=fix), ()
            yield finding, edits


def family(prefix: str, title: str) -> Family:
    """Make a family of the linter."""
    return Family(
        prefix,
        title,
        "What `sparkbook lint` looks for. Each example was judged when this page was built; the"
        " findings are what the linter reported.",
        type=LintRule,
        samples="sparkbook.lint.samples",
    )
