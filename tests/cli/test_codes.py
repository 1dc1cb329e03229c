"""`sparkbook rules`: every code that a finding can have is listed and shown."""

import json

from command_line import run
from sparkbook.site import rule_pages


def test_every_code_is_listed() -> None:
    lines = run("rules", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [rule.code for rule in rule_pages.every()]
    rows = json.loads(run("rules", "list", "--json").stdout)["rules"]
    assert {"code", "name", "source"} == set(rows[0])


def test_a_code_of_each_family_is_shown() -> None:
    firsts = {rule.code.rstrip("0123456789"): rule.code for rule in rule_pages.every()}
    assert len(firsts) > 15
    for code in firsts.values():
        page = run("rules", "show", code.lower()).stdout
        assert page.startswith(f"# {code}: ") and "## Source" in page, code


def test_an_unknown_code() -> None:
    assert run("rules", "show", "ABC999", check=2).stderr == (
        "sparkbook: Unknown code 'ABC999'. To list all codes: sparkbook rules list\n"
    )
