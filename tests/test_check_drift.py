"""The report of what moved: a release that the table does not know, what it brings to the
catalogue, and links.
"""

import copy
import sys
from pathlib import Path

import pytest
from sparkbook import releases

ROOT = Path(__file__).parents[1]


@pytest.fixture
def drift(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_drift

    yield check_drift
    for name in ("check_drift", "audit", "build_releases", "vllm_source"):
        sys.modules.pop(name, None)


@pytest.fixture
def own_table(monkeypatch):
    """The table of this process, to be changed at will."""
    mine = copy.deepcopy(releases.table())
    monkeypatch.setattr(releases, "table", lambda: mine)
    releases._get.cache_clear()
    yield mine
    releases._get.cache_clear()


def test_only_final_releases_that_are_newer_count(drift):
    assert drift.unknown(
        ["1.2.0", "0.33.0", "0.34.0rc1", "0.33.1", "no version", "0.34.0.dev3"],
        ["0.32.0", "0.33.0"],
    ) == [
        "0.33.1",
        "1.2.0",
    ]


def test_a_release_without_an_option_shows_in_the_recipes_that_use_it(drift, own_table):
    before = releases.newest()
    found = {
        category: dict(releases.get(before).names(category)) for category in releases.CATEGORIES
    }
    drift.learn("99.0.0", copy.deepcopy(found), releases.get(before).requires)
    assert list(drift.catalogue(before)) == [], "nothing changed"
    del found["options"]["max-num-seqs"]
    drift.learn("100.0.0", found, {})
    told = list(drift.catalogue(before))
    assert told and all("max-num-seqs" in line for line in told if "FLAG10" in line)
    assert [change.name for change in releases.diff(before, "100.0.0")] == ["max-num-seqs"]


def test_the_books_own_links_are_well_formed(drift):
    assert list(drift.links(ROOT)) == []


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://docs.vllm.ai/en/latest/", ""),
        ("http://127.0.0.1:8000/v1", ""),
        ("http://localhost:8000", ""),
        ("http://docs.vllm.ai/", "not https"),
        ("https://vllm", "'vllm' is no host"),
        ("https://a.b:x/", "Port could not be cast to integer value as 'x'"),
    ],
)
def test_the_form_of_a_link(drift, url, fault):
    assert drift.malformed(url) == fault


def test_a_question_that_cannot_be_asked_is_named(drift, monkeypatch, capsys):
    def fails():
        raise OSError("no network")

    monkeypatch.setattr(drift, "published", fails)
    for name in ("bills", "python_vulnerabilities", "npm_vulnerabilities"):
        monkeypatch.setattr(drift.audit, name, lambda: ["a file"])
    assert drift.main(["--no-notebooks"]) == 2
    assert "Could not be asked: no network" in capsys.readouterr().out
