"""The pages of the rules."""

from __future__ import annotations

import functools
import re

import pytest
from sparkbook.releases import known_bad
from sparkbook.site import combinations
from sparkbook.site.rule_pages import index, rule_pages


@functools.cache
def pages() -> list[tuple[str, str]]:
    return list(rule_pages({}, {}))


@pytest.mark.slow
def test_headings_in_code_blocks_are_left_alone() -> None:
    text = "\n".join(text for _, text in pages())
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.findall(r"^#{3,} ", outside, re.MULTILINE)
    assert re.findall(r"^# ", outside, re.MULTILINE) and re.findall(r"^## ", outside, re.MULTILINE)


def test_the_list_names_every_page_and_counts_its_rules():
    from sparkbook.logs.signatures import signatures

    text = index(pages())
    assert all(f"]({name}) |" in text for name, _ in pages())
    memory = sum(1 for signature in signatures() if signature.prefix == "LOG1")
    assert f"| [LOG1xx](log1) | memory | {memory} |" in text


@pytest.mark.slow
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


def test_every_section_has_a_severity_two_examples_and_a_source() -> None:
    text = "\n".join(text for _, text in pages())
    sections = re.split(r"^\((\w+)\)=$", text, flags=re.MULTILINE)
    by_code = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert len(by_code) > 250
    for code, section in by_code.items():
        assert re.search(r"^\*.+ · (error|warning|info)\b.*\*$", section, re.MULTILINE), code
        failing, _, passing = section.partition("\n**Passes**\n")
        assert "\n**Fails**\n" in failing and "\n**Source**\n" in passing, code
        # The examples are judged when the page is built; what the hub answers is reproduced by a
        # test.
        assert re.search(r"^- \*\*(error|warning|info)\*\*: ", failing, re.MULTILINE), code
        assert not re.search(r"^- \*\*(error|warning|info)\*\*: ", passing, re.MULTILINE), code


def test_a_name_at_the_start_of_a_text_keeps_its_case() -> None:
    text = dict(pages())["log1"]
    assert "\nvLLM is several processes" in text and "VLLM is" not in text


def test_the_page_of_known_bad_combinations_has_the_whole_table() -> None:
    text = combinations.page()
    rows = [line for line in text.splitlines() if re.match(r"\| (<a |BAD)", line)]
    table = known_bad.combinations()
    assert len(rows) == len(table)
    for row, one in zip(rows, table, strict=True):
        assert one.code in row and all(source.url in row for source in one.sources)
        assert ("*(disputed: " in row) == bool(one.disputed)
        assert len(re.findall(r"(?<!\\)\|", row)) == 8
    sections = dict(pages())["bad"]
    for label in re.findall(r'href="bad\.html#(\w+)"', text):
        assert f"({label})=" in sections
