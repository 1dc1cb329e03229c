"""A small book that is built once, its site, and a browser to look at it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from sparkbook.runner.project import Project

if TYPE_CHECKING:
    from chromium import Tab

sys.path.insert(0, str(Path(__file__).parent))  # for chromium.py, which only tests use
ROOT = Path(__file__).resolve().parents[2]

RECIPES = ("gemma-4-31b-it-nvfp4", "gpt-oss-120b", "embedded/tiny-dense")
"""One with tables of scores, one plain, one without an image."""

INTRO = """# A small book

A formula, $t = b / w$, a diagram, and {doc}`how-to-read`.

```{mermaid}
flowchart LR
  a[Launch] --> b[Warm up]
```

## Choose

```{include} _chooser.md
```
"""


@pytest.fixture(scope="session")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The real configuration, scripts and model template, three recipes, one chapter with a widget:
    run, and its site built.
    """
    import io

    from notebook_files import write_notebook
    from sparkbook.runner.project import here
    from sparkbook.site import vendor
    from sparkbook.site.book import build

    root = tmp_path_factory.mktemp("book")
    for name in (
        "_config.yml",
        "conf.py",
        "package.json",
        "package-lock.json",
        "requirements.txt",
        "requirements-wasm.txt",
    ):
        shutil.copyfile(ROOT / name, root / name)
    for name in ("_static", "reference"):
        shutil.copytree(ROOT / "book" / name, root / "book" / name)
    shutil.copyfile(ROOT / "book" / "how-to-read.md", root / "book" / "how-to-read.md")
    (root / "book" / "intro.md").write_text(INTRO, "utf-8")
    overview = (
        "from sparkbook import recipes\nfrom sparkbook.site import"
        f" present\npresent.overview([recipes.load(name) for name in {RECIPES!r}])"
    )
    number = "factor: int = 2  # what is multiplied"
    write_notebook(root / "notebooks/07_models.ipynb", [overview, "print(factor)"], number)
    write_notebook(
        root / "notebooks/01_small.ipynb",
        ["print(21 * factor)", "import ipywidgets\nipywidgets.IntSlider(3)"],
        number,
    )
    shutil.copyfile(ROOT / "notebooks/model.ipynb", root / "notebooks/model.ipynb")
    (root / "notebooks/02_prose.md").write_text("# Prose\n\nGo on to {doc}`01_small`.\n", "utf-8")
    reference = [
        {"file": f"book/reference/{path.stem}"}
        for path in sorted((root / "book/reference").glob("*.md"))
    ]
    chapters = [
        {"file": name}
        for name in (
            "book/how-to-read",
            "notebooks/01_small",
            "notebooks/02_prose",
            "notebooks/07_models",
        )
    ]
    toc = {
        "format": "jb-book",
        "root": "book/intro",
        "parts": [{"caption": "All", "chapters": chapters + reference}],
    }
    (root / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")
    project = Project(root, recipes=RECIPES)
    vendor.ensure(here())
    shutil.copytree(here().vendor, project.vendor)
    outcome = build(project, out=io.StringIO())
    assert not outcome.failures, outcome.failures
    assert not outcome.problems, outcome.problems
    return project


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
