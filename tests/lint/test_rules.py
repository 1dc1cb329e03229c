"""Every rule by its own examples, and what every rule has to have."""

import re
from pathlib import Path

import pytest
from sparkbook import lint
from sparkbook.lint import FAMILIES, RULES
from sparkbook.site import rule_sections

KINDS = set(Path(__file__).with_name("kinds.txt").read_text("utf-8").split())
RULE = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


def codes(text, release=None):
    return [finding.rule for finding in lint.lint(lint.example(text), release=release).findings]


@RULE
def test_the_failing_example_fails(rule):
    report = lint.lint(lint.example(rule.bad), release=rule.release)
    finding = next(finding for finding in report.findings if finding.rule == rule.code)
    assert finding.source == rule.source and finding.why == rule.address
    assert (finding.since, finding.until) == (rule.since, rule.until)
    assert finding.severity in ("error", "warning", "info") and finding.message[0] != " "


@RULE
def test_the_passing_example_passes(rule):
    report = lint.lint(lint.example(rule.good), release=rule.release)
    assert rule.code not in [finding.rule for finding in report.findings]
    assert report.findings.worst != "error", (
        "an example of what is right must not be wrong in another way"
    )


@RULE
def test_a_rule_is_complete(rule):
    assert re.fullmatch(r"[A-Z]+\d{3}", rule.code) and rule.family in FAMILIES
    assert re.fullmatch(r"[a-z0-9-]+", rule.name)
    assert len(rule.text) > 60 and rule.source
    assert rule.kind is None or rule.kind in KINDS


def test_there_are_at_least_sixty_rules_in_nine_families():
    assert len(RULES) >= 60
    assert {rule.family for rule in RULES.values()} == set(FAMILIES) and len(FAMILIES) == 9
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


@RULE
def test_every_rule_has_a_page_with_both_examples(rule):
    text = rule_sections.lint_rule(rule)
    assert (
        text.startswith(f"# {rule.code}: {rule.name}")
        and "## Fails" in text
        and "## Passes" in text
        and "## Source" in text
    )
    failing = text.split("## Fails")[1].split("## Passes")[0]
    assert re.search(r"- \*\*(error|warning|info)\*\*", failing), (
        "the page shows what the linter says, not what is written about it"
    )


@pytest.mark.parametrize("code", ["QUANT104", "SPEC105", "MODEL107", "SPARK105", "SPARK107"])
def test_advice_expires(code):
    """Outside its range of releases a rule is silent about the very line that fails inside it."""
    rule = RULES[code]
    assert code in codes(rule.bad, rule.release)
    assert code not in codes(rule.bad, "0.33.0" if rule.until else "0.19.0")
