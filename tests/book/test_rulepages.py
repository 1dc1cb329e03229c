"""The rules' pages: every rule and signature has a section at the address that its findings name."""

from __future__ import annotations

import re

from sparkbook import lint
from sparkbook.book.rules import code_families, code_tables, index, rule_pages
from sparkbook.logs.signatures import signatures


def test_every_rule_and_signature_stands_once_at_its_address() -> None:
    pages = dict(rule_pages({}, {}))
    found = [f"rules/{name}.html#{label}" for name, text in pages.items() for label in re.findall(r"^\((\w+)\)=$", text, re.MULTILINE)]
    expected = [rule.address for rule in lint.RULES.values()]
    expected += [code.address for _, codes, _ in code_tables().values() for code in codes.values()]
    expected += [f"rules/{signature.id[:4].lower()}.html#{signature.id.lower()}" for signature in signatures()]
    expected += [check.address for family in code_families() for check in family.checks.values()]
    assert sorted(found) == sorted(expected)


def test_headings_in_code_blocks_are_left_alone() -> None:
    text = "\n".join(text for _, text in rule_pages({}, {}))
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.findall(r"^#{3,} ", outside, re.MULTILINE)
    assert re.findall(r"^# ", outside, re.MULTILINE) and re.findall(r"^## ", outside, re.MULTILINE)


def test_the_list_names_every_page_and_counts_its_rules():
    from sparkbook.logs.signatures import signatures

    text = index(rule_pages({}, {}))
    assert all(f"]({name}) |" in text for name, _ in rule_pages({}, {}))
    memory = sum(1 for signature in signatures() if signature.id.startswith("LOG1"))
    assert f"| [LOG1xx](log1) | memory | {memory} |" in text
