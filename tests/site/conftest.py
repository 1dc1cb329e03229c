"""A small book that is built once, its site, and a browser to look at it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sparkbook.runner.project import Project

if TYPE_CHECKING:
    from chromium import Tab

sys.path.insert(0, str(Path(__file__).parent))  # for chromium.py, which only tests use
ROOT = Path(__file__).resolve().parents[2]

RECIPES = (
    "gemma-4-31b-it-nvfp4",
    "gpt-oss-120b",
    "embedded/tiny-dense",
    "gemma-4-31b-it-nvfp4-mtp",
    "gpt-oss-120b-v0.28.0",
)
"""One with tables of scores, one plain, one without an image; and the successors of the first two."""


@pytest.fixture(scope="session")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A book of three recipes, with its site."""
    from small_books import make_book

    return make_book(tmp_path_factory.mktemp("book"), RECIPES)


@pytest.fixture(scope="session")
def small_site(small_book: Project) -> Path:
    """The small book's site."""
    return small_book.html


@pytest.fixture
def small_copy(small_book: Project, tmp_path: Path) -> Project:
    """The small book again, to be spoilt."""
    return Project(
        Path(shutil.copytree(small_book.root, tmp_path / "book", symlinks=True)), recipes=RECIPES
    )


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page of a browser of its own."""
    from chromium import browser

    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
