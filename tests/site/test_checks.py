"""Every check that is made in code: whole, found in its failing example and not in its passing one,
at its address in the book.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from sparkbook.site.rule_pages import CODE_FAMILIES, rule_pages

KINDS = set(
    yaml.safe_load((Path(__file__).parents[1] / "data" / "logs" / "kinds.yaml").read_text("utf-8"))
)
ALL = [(family, check) for family in CODE_FAMILIES for check in family.checks.values()]
CHECK = pytest.mark.parametrize(("family", "check"), ALL, ids=[check.code for _, check in ALL])


@CHECK
def test_examples(family, check):
    finding = next(
        finding for finding in family.examined(check.bad()) if finding.rule == check.code
    )
    assert finding.why == check.address and finding.fix and finding.message[0] != " "
    good = family.examined(check.good())
    assert check.code not in [finding.rule for finding in good]
    assert "error" not in [finding.severity for finding in good], (
        "an example of what is right must not be wrong in another way"
    )


@CHECK
def test_a_check_is_complete(family, check):
    assert re.fullmatch(r"[a-z0-9-]+", check.name) and len(check.text) > 60 and check.source
    assert check.kind is None or check.kind in KINDS
    assert family.show(check.bad()) != family.show(check.good()), (
        "the page must show what makes the difference"
    )


def test_codes_and_names_are_given_once():
    assert (
        len({check.code for _, check in ALL})
        == len({(family.prefix, check.name) for family, check in ALL})
        == len(ALL)
    )


def test_every_check_has_its_section():
    pages = dict(rule_pages({}, {}))
    for _, check in ALL:
        page, label = check.address.removeprefix("rules/").split(".html#")
        assert f"({label})=\n## {check.code}: {check.name}" in pages[page]
