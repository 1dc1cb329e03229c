"""`sparkbook rules`: every code that a finding can have is listed and shown."""

import json

import pytest
from command_line import in_terminal, run
from sparkbook import rules


def test_every_code_is_listed() -> None:
    lines = run("rules", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [rule.code for rule in rules.every()]
    rows = json.loads(run("rules", "list", "--json").stdout)["rules"]
    assert {"code", "name", "source"} == set(rows[0])


def test_a_code_of_each_family_is_shown() -> None:
    firsts = {rule.code.rstrip("0123456789"): rule.code for rule in rules.every()}
    assert len(firsts) > 15
    for code in firsts.values():
        page = run("rules", "show", code.lower()).stdout
        assert page.startswith(f"## {code}: ") and "**Source**" in page, code


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_shows_a_page_and_no_markdown(width: int) -> None:
    _, text = in_terminal(width, "rules", "show", "IMG101")
    assert "IMG101: floating-tag" in text and "https://github.com/ai-dynamo/dynamo" in text
    assert not any(mark in text for mark in ("##", "**", "```"))
    assert max(map(len, text.splitlines())) <= width


def test_an_unknown_code() -> None:
    assert run("rules", "show", "ABC999", check=2).stderr == (
        "sparkbook: Unknown code 'ABC999'. To list all codes: sparkbook rules list\n"
    )
