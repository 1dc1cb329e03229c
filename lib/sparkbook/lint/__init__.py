"""The linter: what cannot work, works by luck, or has expired, judged against the vLLM release that
the image holds.

>>> from sparkbook import lint
>>> line = "vllm serve openai/gpt-oss-20b --speculative-disable-by-batch-size 32"
>>> report = lint.lint(line, release="0.32.0")
>>> report.findings[0].rule
'FLAG102'
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.formats.conversion import finding as conversion_finding
from sparkbook.formats.lines import given, of_launch, of_text
from sparkbook.formats.rules import CONV
from sparkbook.launch.line import Line
from sparkbook.launch.reader import read
from sparkbook.lint.case import Case
from sparkbook.lint.rules import FAMILIES, RULES, every
from sparkbook.releases import known, normal
from sparkbook.rules import Edit

if TYPE_CHECKING:
    from sparkbook.lint.asked import Contradicted
    from sparkbook.recipes.launch import Launch
    from sparkbook.recipes.schema import Recipe
    from sparkbook.releases.answers import Answer

_NOQA = re.compile(r"#\s*lint:\s*ignore\s+([A-Z]+\d{3}(?:\s*,\s*[A-Z]+\d{3})*)[ \t]*(.*)")


@dataclass(frozen=True, repr=False)
class Report:
    """What the linter says about one line.

    Attributes:
        findings: errors first.
        release: the vLLM release judged against.
        assumed: why that release was assumed; None where it is known.
        suppressed: rule and reason of each finding that the input asks to ignore.
        text: the input's text; empty for a recipe.
        edits: the mechanical repairs of the findings that have one, in the text's order.
        said: what vLLM itself said; None: it was not asked.
        contradicted: findings that were dropped, since vLLM accepts what they say it refuses.
    """

    findings: Findings
    release: str
    assumed: str | None = None
    suppressed: tuple[tuple[str, str], ...] = ()
    text: str = ""
    edits: tuple[Edit, ...] = ()
    said: Answer | None = None
    contradicted: tuple[Contradicted, ...] = ()

    def fixed(self) -> str:
        """Return the text with every mechanical repair made; repairs that overlap an earlier one
        are left for the next run.
        """
        parts, at = [], 0
        for edit in self.edits:
            if edit.start >= at:
                parts += [self.text[at : edit.start], edit.text]
                at = edit.end
        return "".join(parts) + self.text[at:]

    def to_dict(self) -> dict[str, Any]:
        """Return the shape every `--json` answer has."""
        return self.findings.to_dict(
            release=self.release,
            assumed=self.assumed,
            suppressed=[list(item) for item in self.suppressed],
            asked=str(self.said.judge) if self.said else None,
            contradicted=[str(item) for item in self.contradicted],
        )

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{count} {severity}" for severity, count in self.findings.summary.items()
        )
        return f"<Report vLLM {self.release}: {counts}>"

    def _repr_html_(self) -> str:
        reason = f" ({self.assumed})" if self.assumed else ""
        return f"<p>Judged as vLLM {self.release}{reason}.</p>{self.findings._repr_html_()}"


def suppressions(text: str) -> dict[str, str]:
    """Return rules that a text asks to ignore, each with its reason: `# lint: ignore
    RUN103 the recipe has run for a month`.

    Raises:
        SparkbookError: one without a reason, or of a rule that does not exist.
    """
    reasons: dict[str, str] = {}
    for match in _NOQA.finditer(text):
        for code in re.split(r"\s*,\s*", match[1]):
            if not match[2].strip():
                raise SparkbookError(
                    f"'{match[0].strip()}' gives no reason: write why after the code"
                )
            reasons[_known(code)] = match[2].strip()
    return reasons


def _known(code: str) -> str:
    if code not in RULES and code not in CONV.rules:
        prefixes = ", ".join(family.prefix for family in FAMILIES)
        raise SparkbookError(f"There is no rule {code}; the linter's families: {prefixes}.")
    return code


def lint(
    source: str | Launch | Recipe | Line,
    release: str | None = None,
    ignore: Iterable[str] = (),
    said: Answer | None = None,
) -> Report:
    """Judge a recipe or a launch line.

    Args:
        source: a launch, a recipe, or what a user names: a recipe's id, a file, `-`, or the text of
            a line.
        release: vLLM release to judge against; left out, the one that the image holds.
        ignore: codes of rules not to ask.
        said: what vLLM itself said of the line (`sparkbook.oracle`).

    Raises:
        SparkbookError: the input cannot be used, a code is not known, or the release is not in the
            table.
    """
    silent = {_known(code): "ignored on the command line" for code in ignore}
    if isinstance(source, str):
        line, text = given(source)
        silent = {**suppressions(text), **silent}
    elif isinstance(source, Line):
        line = source
    else:
        recipe: Any = source if hasattr(source, "launch") else None
        launch: Any = recipe.launch if recipe else source
        line = of_launch(launch, recipe)
    case_ = Case(line, release)
    if said is not None and case_.assumed and normal(said.judge.vllm) in known():
        case_ = Case(
            line, normal(said.judge.vllm)
        )  # of both assumed releases, the one that answers
    kept: list[Finding] = []
    edits: list[Edit] = []
    suppressed: list[tuple[str, str]] = []
    for rule in every():
        for finding, repair in rule.repairs(case_):
            if rule.code in silent:
                suppressed.append((rule.code, silent[rule.code]))
            else:
                kept.append(finding)
                edits += repair
    mistakes = [
        conversion_finding(mistake.code, mistake.message, mistake.evidence, mistake.fix)
        for mistake in line.mistakes
        if mistake.code is not None
    ]
    if line.others:
        mistakes += [
            conversion_finding(
                remark.code, remark.message, remark.evidence, "Judge each of the others by itself."
            )
            for remark in line.remarks
            if remark.code == "CONV205"
        ]
    for finding in [*mistakes, *line.findings]:
        if finding.rule in silent:
            suppressed.append((finding.rule, silent[finding.rule]))
        else:
            kept.append(finding)
    # Once each, and at one place in the order of the rules: a set's order would differ from one
    # process to the next.
    unique = sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end))
    contradicted: list[Contradicted] = []
    if said is not None:
        from sparkbook.lint.asked import combine  # pydantic: only where vLLM was asked

        kept, contradicted = combine(kept, said, case_.version)
    return Report(
        Findings(kept),
        case_.version,
        case_.assumed,
        tuple(suppressed),
        line.text,
        tuple(unique),
        said,
        tuple(contradicted),
    )


def repair(
    report: Report, release: str | None = None, ignore: Iterable[str] = ()
) -> tuple[str, Report]:
    """Make every mechanical repair, again until nothing more is to be repaired, and gives the text
    and what is then left to say.
    """
    for _ in range(10):
        text = report.fixed()
        if text == report.text:
            break
        silent = {**suppressions(text), **dict.fromkeys(ignore, "")}
        report = lint(of_text(text), release, silent)
    return report.text, report


def difference(before: str, after: str, name: str) -> str:
    """Return what a repair changed, as a unified diff; empty where nothing did."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(
        f"{line.rstrip()}\n"
        for line in difflib.unified_diff(old, new, f"{name} (before)", f"{name} (after)")
    )


__all__ = [
    "FAMILIES",
    "RULES",
    "Case",
    "Edit",
    "Line",
    "Report",
    "difference",
    "lint",
    "read",
    "repair",
    "suppressions",
]
