"""A recipe that is added to the catalogue makes no committed output stale: cells that show the whole
catalogue carry the tag `nbval-ignore-output`, and are held here to show the new recipe too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from in_process import Chapter
from sparkbook.recipes import catalogue
from test_parameters import CHAPTERS, NOTEBOOKS, WITHOUT, chapter

NEW = """\
extends: {base}
id: new-{base}
title: New {base}
model: {{repo: example/New-{base}}}
"""
BASES = ("qwen3.6-35b-a3b-nvfp4", "qwen3.5-27b-dflash", "gpt-oss-20b")
"""One of each kind: with a draft of its own, with folders of single models, with neither."""


@pytest.fixture
def _one_recipe_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(catalogue.CATALOGUE, tmp_path / "catalogue"))
    for base in BASES:
        (folder / f"new-{base}.yaml").write_text(NEW.format(base=base), "utf-8")
    monkeypatch.setattr(catalogue, "CATALOGUE", folder)


@pytest.mark.kernel
@pytest.mark.parametrize("name", CHAPTERS)
def test_only_tagged_cells_change(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(NOTEBOOKS)
    before = chapter(name)
    request.getfixturevalue("_one_recipe_more")
    after = Chapter(NOTEBOOKS / f"{name}.ipynb", WITHOUT.get(name, ()))
    changed = [
        (old, new)
        for old, new in zip(before.cells, after.cells, strict=True)
        if old.shown != new.shown
    ]
    stale = [new.number for _, new in changed if "nbval-ignore-output" not in new.tags]
    assert not stale, "tag these cells nbval-ignore-output"
    for old, new in changed:
        lines = set(map(_without_numbers, old.shown.splitlines()))
        added = [line for line in new.shown.splitlines() if _without_numbers(line) not in lines]
        foreign = [line for line in added if "new" not in line.lower()]
        assert not foreign, f"cell {new.number}: the new recipes changed what is about others"


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d,.]+", "0", line)
