"""Every rule of every family: complete, found in its failing example and not in its passing one, in
the form that all findings share, at its address on the site.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter
from sparkbook import lint, rules
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.rules import Family, Hit, Rule
from sparkbook.site.rule_pages import rule_pages

LIBRARY = Path(rules.__file__).parent
ALL = [(family, rule) for family in rules.families() for rule in family.rules.values()]
EACH = pytest.mark.parametrize(("family", "rule"), ALL, ids=[rule.code for _, rule in ALL])


@functools.cache
def examined(code: str, which: str) -> list[Finding]:
    rule = rules.find(code)
    return rules.family(rule.prefix).examine(rule.example(which))


def of(rule: Rule, which: str) -> list[Finding]:
    return [finding for finding in examined(rule.code, which) if finding.rule == rule.code]


@EACH
def test_the_failing_example_fails(family: Family, rule: Rule) -> None:
    if not family.judged:
        assert family.prefix == "HUB"  # what the hub answers is reproduced by tests/test_weights.py
        return
    found = of(rule, "fails")
    assert found
    for finding in found:
        assert finding.why == rule.address and finding.source
        assert (finding.kind or next(iter(rules.kinds()))) in rules.kinds()


@EACH
def test_the_passing_example_passes(family: Family, rule: Rule) -> None:
    if not family.judged:
        return
    assert not of(rule, "passes")
    others = [finding.severity for finding in examined(rule.code, "passes")]
    assert "error" not in others, "an example of what is right must not be wrong in another way"
    assert family.show(rule.example("fails")) != family.show(rule.example("passes")), (
        "the page must show what makes the difference"
    )


NOT_VERBS = {
    "a",
    "an",
    "the",
    "no",
    "not",
    "nothing",
    "this",
    "that",
    "it",
    "is",
    "are",
    "be",
    "at",
    "both",
    "or",
    "and",
    "as",
    "if",
    "in",
    "on",
    "of",
    "by",
    "one",
    "two",
    "did",
    "then",
    "there",
    "such",
    "more",
    "less",
    "fewer",
    "too",
    "only",
}
"""Words that a fix must not start with: it starts with an imperative verb."""


@EACH
def test_findings_have_one_form(family: Family, rule: Rule) -> None:
    """A message is a sentence with a capital (or a name) and a full stop; a fix says what to do."""
    shown = family.show(rule.example("fails"))
    for finding in of(rule, "fails") if family.judged else [rule.finding("It fails.")]:
        message, fix = finding.message, finding.fix
        assert not re.fullmatch(r"[a-z]+[,:;]?", message.split()[0]), message
        assert message.endswith(".") and not message.endswith("..") and "\n" not in message
        if fix is not None:
            assert re.match(r"[A-Z][a-z]+\b", fix), fix
            assert fix.split()[0].lower().strip(",:;.") not in NOT_VERBS, fix
            assert fix.endswith(".") and not fix.endswith(".."), fix
        for name in re.findall(r"\{[a-z_]+\}", f"{message} {fix}"):
            assert name in shown, f"{name} is not filled in"


@EACH
def test_a_rule_is_complete(family: Family, rule: Rule) -> None:
    assert len(f"{rule.title or ''} {rule.text}") > 45 and rule.source
    assert rule.kind is None or rule.kind in rules.kinds()
    assert {other.kind for other in rule.alternatives} <= rules.kinds()
    assert rules.find(rule.code) is rule and rule.prefix == family.prefix
    for pattern in rule.pattern:
        re.compile(pattern)
    values = {one.name: getattr(rule, one.name) for one in dataclasses.fields(rule)}
    TypeAdapter(type(rule)).validate_python(values)


def test_codes_and_names_are_given_once() -> None:
    assert [
        code for code, count in Counter(rule.code for _, rule in ALL).items() if count > 1
    ] == []
    for family in rules.families():
        names = Counter(rule.name for rule in family.rules.values())
        assert [name for name, count in names.items() if count > 1] == []


def test_every_rule_has_its_section_at_its_address() -> None:
    pages = dict(rule_pages({}, {}))
    places = []
    for name, text in pages.items():
        for label, heading in re.findall(r"^\((\w+)\)=\n## (\w+): ", text, re.MULTILINE):
            assert label == heading.lower()
            places.append(f"rules/{name}.html#{label}")
    assert sorted(places) == sorted(rule.address for _, rule in ALL)


def test_findings_are_assembled_in_one_place() -> None:
    places = [
        f"{path.relative_to(LIBRARY)}: {line.strip()}"
        for path in sorted(LIBRARY.rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if re.search(r'(?<!class )\bFinding\(|f"rules/\S*\.html', line)
    ]
    assert places == [
        'rules.py: return f"rules/{self.prefix.lower()}.html#{self.code.lower()}"',
        "rules.py: return Finding(",
    ]


def test_a_code_that_does_not_exist() -> None:
    for code in ("HOST999", "NONE001", "", "host002"):
        with pytest.raises(SparkbookError, match="Unknown code"):
            rules.find(code)
    with pytest.raises(SparkbookError, match="There are no rules"):
        rules.family("NONE")


ENTRY = {
    "code": "TST101",
    "name": "example",
    "text": "What it catches.",
    "source": "https://example.org",
    "fails": "bad",
    "passes": "good",
    "title": "Port {port} of {host} is taken.",
    "fix": "Stop {owner}.",
}


def load(folder: Path, entries: object) -> Family:
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(entries), "utf-8")
    family = Family("TST", "tests", "Rules for tests.")
    family.load(file)
    return family


def test_a_file_of_rules(tmp_path: Path) -> None:
    rule = load(tmp_path, [ENTRY])["TST101"]
    finding = rule.finding(port=8000, owner="vllm")
    assert finding.message == "Port 8000 of HOST is taken." and finding.fix == "Stop vllm."
    assert finding.why == "rules/tst.html#tst101" and finding.severity == "error"


def test_threads_that_ask_first_at_once_get_all_rules() -> None:
    family, asked = Family("TST", "tests", "Rules for tests."), threading.Barrier(4)

    def slow() -> list[Rule]:
        time.sleep(0.05)
        return [Rule(**ENTRY)]

    def ask(_: int) -> str:
        asked.wait(60)
        return str(family["TST101"].code)

    family.load(slow)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["TST101"] * 4


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{**ENTRY, "colour": "red"}], "rules.yaml: TST101: colour: no such key"),
        ([{key: ENTRY[key] for key in ENTRY if key != "source"}], "TST101: source: is missing"),
        ([{"name": "x"}], "rules.yaml: entry 1: code: is missing"),
        ([ENTRY, ENTRY], "rules.yaml: TST101 is given twice"),
        ([ENTRY, {**ENTRY, "code": "TST102"}], "rules.yaml: example is given twice"),
        ([{**ENTRY, "code": "OTH101"}], "OTH101 is not a code of the family TST"),
        ({"TST101": ENTRY}, "rules.yaml: the file is not a list of rules"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, entries: object, problem: str) -> None:
    with pytest.raises(SparkbookError, match=re.escape(problem)) as error:
        _ = load(tmp_path, entries).rules
    assert "\n" not in str(error.value)


def test_a_hit_replaces_what_the_rule_says() -> None:
    rule = Rule(**{**ENTRY, "kind": "driver"})
    hit = Hit("It is so.", "line 1", "Do it.", "info", "port-in-use", "low", "another source")
    finding = rule.finding(hit)
    assert finding.to_dict() == {
        "why": rule.address,
        "since": None,
        "until": None,
        "rule": "TST101",
        "message": "It is so.",
        "evidence": "line 1",
        "fix": "Do it.",
        "severity": "info",
        "kind": "port-in-use",
        "confidence": "low",
        "source": "another source",
    }
    assert rule.finding("It is so.").kind == "driver"


@pytest.mark.parametrize("code", ["SPEC105", "MODEL107", "SPARK105", "SPARK107"])
def test_advice_expires(code: str) -> None:
    """Outside its range of releases a rule finds nothing in the line that fails inside it."""
    rule = lint.RULES[code]
    assert of(rule, "fails")
    outside = "0.33.0" if rule.until else "0.19.0"
    assert code not in [one.rule for one in lint.lint(rule.fails, release=outside).findings]
