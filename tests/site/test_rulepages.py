"""The rules' pages: every rule and signature has a section at the address that its findings name."""

from __future__ import annotations

import functools
import re

from sparkbook import lint
from sparkbook.logs.signatures import signatures
from sparkbook.site.rule_pages import CODE_FAMILIES, CODE_TABLES, index, rule_pages


@functools.cache
def pages() -> list[tuple[str, str]]:
    return list(rule_pages({}, {}))


def test_every_rule_and_signature_stands_once_at_its_address() -> None:
    written = dict(pages())
    found = [
        f"rules/{name}.html#{label}"
        for name, text in written.items()
        for label in re.findall(r"^\((\w+)\)=$", text, re.MULTILINE)
    ]
    expected = [rule.address for rule in lint.RULES.values()]
    expected += [code.address for codes, *_ in CODE_TABLES.values() for code in codes.values()]
    expected += [
        f"rules/{signature.id[:4].lower()}.html#{signature.id.lower()}"
        for signature in signatures()
    ]
    expected += [check.address for family in CODE_FAMILIES for check in family.checks.values()]
    assert sorted(found) == sorted(expected)


def test_headings_in_code_blocks_are_left_alone() -> None:
    text = "\n".join(text for _, text in pages())
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.findall(r"^#{3,} ", outside, re.MULTILINE)
    assert re.findall(r"^# ", outside, re.MULTILINE) and re.findall(r"^## ", outside, re.MULTILINE)


def test_the_list_names_every_page_and_counts_its_rules():
    from sparkbook.logs.signatures import signatures

    text = index(pages())
    assert all(f"]({name}) |" in text for name, _ in pages())
    memory = sum(1 for signature in signatures() if signature.id.startswith("LOG1"))
    assert f"| [LOG1xx](log1) | memory | {memory} |" in text


def test_a_page_names_the_chapters_that_speak_of_it() -> None:
    chapters = [
        ("notebooks/a", "By code", "see HOST002"),
        ("notebooks/b", "By command", "$ sparkbook check"),
        ("notebooks/c", "Neither", "XHOST002"),
    ]
    text = dict(rule_pages({}, {}, chapters))["host"]
    assert (
        "Chapters that mention it: {doc}`By code <../notebooks/a>`, {doc}`By command"
        " <../notebooks/b>`." in text
    )
    assert "Neither" not in text


def test_every_section_has_gravity_two_examples_and_a_source() -> None:
    text = "\n".join(text for _, text in pages())
    sections = re.split(r"^\((\w+)\)=$", text, flags=re.MULTILINE)
    by_code = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert len(by_code) > 250
    for code, section in by_code.items():
        if code.startswith("log") and not code.startswith("log9"):
            assert (
                "Found in:" in section and "Not found in:" in section and "| source |" in section
            ), code
            continue
        assert re.search(r"^\*.+ · (error|warning|info)\b.*\*$", section, re.MULTILINE), code
        failing, _, passing = re.split(
            r"^\*\*(?:Passes|Not reported)(.*)\*\*$", section, flags=re.MULTILINE
        )
        assert re.search(r"^\*\*(Fails|Reported)", failing, re.MULTILINE), code
        assert "**Source**" in passing, code
        # What the hub answers is made to happen by a test and told in words; all other examples are
        # judged when the page is built.
        assert code.startswith("hub") or re.search(
            r"^- \*\*(error|warning|info)\*\*: ", failing, re.MULTILINE
        ), code
        assert not re.search(r"^- \*\*(error|warning|info)\*\*: ", passing, re.MULTILINE), code
