"""Make a small book and its site, for the tests that look at them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml
from notebook_files import write_notebook
from sparkbook.runner.project import Project, here
from sparkbook.site import assemble, vendor
from sparkbook.site.book import build

ROOT = Path(__file__).resolve().parents[2]

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


def make_book(
    root: Path, recipes: Sequence[str], problems: bool = False, naming: str = ""
) -> Project:
    """A book of a few recipes: the real configuration, scripts and model template, and one chapter
    with a widget; run, and its site built.

    Args:
        problems: whether the site may have faults, such as links that lead nowhere.
        naming: of the pages of flags and rules, only those with this text in it, and the first.
            Sphinx takes as long as there are pages. It stays so for this process.
    """
    if naming:
        every = assemble._write_pages
        assemble._write_pages = lambda folder, pages, *rest: every(
            folder, (one for n, one in enumerate(pages) if not n or naming in one[1]), *rest
        )
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
    paste = (ROOT / "book" / "paste.md").read_text("utf-8")
    paste = paste.replace("notebooks/11_troubleshooting", "notebooks/01_small")
    (root / "book" / "paste.md").write_text(paste, "utf-8")
    overview = (
        "from sparkbook import recipes\nfrom sparkbook.site import"
        f" present\npresent.overview([recipes.load(name) for name in {tuple(recipes)!r}])"
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
            "book/paste",
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
    project = Project(root, recipes=recipes)
    vendor.ensure(here())
    shutil.copytree(here().vendor, project.vendor)
    outcome = build(project, out=io.StringIO())
    assert not outcome.failures, outcome.failures
    assert problems or not outcome.problems, outcome.problems
    return project
