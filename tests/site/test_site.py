"""The published site. Built by these tests from a small book with the real configuration, pages and
scripts: so a leftover in `_build` cannot pass for a site that builds, and the tests need no engine.
`make book` checks the whole book with the same `check`.
"""

from __future__ import annotations

import html
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from plain_english import stiff_words
from sparkbook.errors import SparkbookError
from sparkbook.runner import notebooks
from sparkbook.runner.pages import pages
from sparkbook.runner.project import Project, toc_files
from sparkbook.site import assemble, planner
from sparkbook.site.book import build
from sparkbook.site.linkcheck import check
from sparkbook.site.notebook_page import as_published


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


class TestCheck:
    """Each fault is found, and what is right is not called a fault."""

    @pytest.mark.parametrize(
        ("page", "problem"),
        [
            ('<a href="gone.html">x</a>', "index.html: the link gone.html leads nowhere"),
            (
                '<a href="#part">x</a>',
                "index.html: the link #part leads to a page without that anchor",
            ),
            ('<img src="gone.png" alt="x">', "index.html: the link gone.png leads nowhere"),
            (
                '<script src="https://cdn.example/x.js"></script>',
                "index.html: loads https://cdn.example/x.js from another site",
            ),
            (
                '<link rel="stylesheet" href="//cdn.example/x.css">',
                "index.html: loads //cdn.example/x.css from another site",
            ),
            (
                '<script type="module">import m from "https://cdn.example/m.mjs"</script>',
                "index.html: loads https://cdn.example/m.mjs from another site",
            ),
            ('<img src="data:image/png;base64,AA">', "has no alternative text"),
        ],
    )
    def test_a_fault_is_found(self, tmp_path: Path, page: str, problem: str) -> None:
        (found,) = check(write(tmp_path, {"index.html": page}))
        assert problem in found

    def test_a_style_sheet_that_loads_from_elsewhere_is_found(self, tmp_path: Path) -> None:
        site = write(
            tmp_path,
            {"index.html": "x", "_static/a.css": "a{src:url(https://fonts.example/f.woff)}"},
        )
        assert check(site) == [
            "_static/a.css: loads https://fonts.example/f.woff from another site"
        ]

    def test_what_is_right_passes(self, tmp_path: Path) -> None:
        page = (
            '<h1 id="a b">x</h1><a href="#a%20b">x</a><a href="sub/two.html#z">x</a><a'
            ' href="https://example.org/">x</a><a href="#">x</a>'
        )
        assert (
            check(
                write(
                    tmp_path,
                    {"index.html": page, "sub/two.html": '<p id="z"><a href="../index.html">x</a>'},
                )
            )
            == []
        )

    def test_an_empty_site_is_a_fault(self, tmp_path: Path) -> None:
        assert check(tmp_path) == [f"{tmp_path.name} contains no page"]


@pytest.mark.site
class TestAssembled:
    """What Sphinx is given."""

    def test_a_generated_page_has_its_own_title_and_its_own_parameters(
        self, small_book: Project
    ) -> None:
        page = next(
            page for page in pages(small_book, "auto") if page.name == "models/gpt-oss-120b"
        )
        notebook = as_published(page)
        assert notebook["cells"][0]["source"].startswith("# gpt-oss-120b\n")
        given = [
            cell
            for cell in notebooks.code_cells(notebook)
            if "injected-parameters" in notebooks.tags(cell)
        ]
        assert 'recipe_id = "gpt-oss-120b"' in given[0]["source"]
        (default,) = [
            cell for cell in notebooks.code_cells(notebook) if "parameters" in notebooks.tags(cell)
        ]
        assert "remove-cell" in notebooks.tags(default)

    def test_every_cell_was_run(self, small_book: Project) -> None:
        for page in pages(small_book, "auto"):
            counts = [cell["execution_count"] for cell in notebooks.code_cells(as_published(page))]
            assert counts == list(range(1, len(counts) + 1)), page.name

    def test_every_picture_has_a_text(self, small_book: Project) -> None:
        page = next(
            page for page in pages(small_book, "auto") if page.name == "models/gemma-4-31b-it-nvfp4"
        )
        cells = [
            cell
            for cell in notebooks.code_cells(as_published(page))
            if any("image/svg+xml" in out.get("data", {}) for out in cell["outputs"])
        ]
        told = [cell["metadata"]["mystnb"]["image"]["alt"].split(":")[0] for cell in cells]
        assert told == [
            "Bar chart",
            "Bar chart",
            "Stacked bars of memory in GiB against a total of 121.6",
            "Roofline",
        ]

    def test_the_pages_stand_under_the_overview(self, small_book: Project) -> None:
        toc = yaml.safe_load((small_book.source_tree / "_toc.yml").read_text("utf-8"))
        files = list(toc_files(toc))
        at = files.index("notebooks/07_models")
        assert sorted(files[at + 1 : at + 4]) == [
            "models/embedded",
            "models/gemma-4-31b",
            "models/gpt-oss-120b",
        ]

    def test_pages_without_an_overview_are_refused(self, small_book: Project) -> None:
        with pytest.raises(SparkbookError, match="notebooks/07_models"):
            assemble.with_models({"root": "book/intro"}, ["gpt-oss-120b"])


@pytest.mark.site
class TestSite:
    """The site itself."""

    def test_it_builds_without_a_warning_and_is_whole(
        self, small_site: Path, small_book: Project
    ) -> None:
        assert check(small_site) == []
        for name in (
            "book/intro",
            "notebooks/02_prose",
            "notebooks/07_models",
            "models/gpt-oss-120b",
            "book/reference/words",
            "index",
        ):
            assert (small_site / f"{name}.html").is_file()
        assert not list(small_book.build.glob("*.old")), "nothing is left of the swap"

    def test_tabs_are_tabs(self, small_site: Path) -> None:
        text = (small_site / "models/gpt-oss-120b.html").read_text("utf-8")
        assert text.count("sd-tab-label") >= 3
        assert "tab-item}" not in text, "no directive is left unread"
        assert 'data-sync-group="launch" data-sync-id="docker"' in text

    def test_a_recipe_without_an_image_has_no_docker_tab(self, small_site: Path) -> None:
        text = (small_site / "models/embedded.html").read_text("utf-8")
        assert "vllm serve" in text
        assert "docker run" not in text

    def test_a_recipes_page_has_a_planner_for_it(self, small_site: Path) -> None:
        text = (small_site / "models/gpt-oss-120b.html").read_text("utf-8")
        given = re.findall(r'<div class="sb-planner"><script [^>]*>(.*?)</script>', text)
        planners = [json.loads(one) for one in given]
        offered = [[recipe["id"] for recipe in one["recipes"]] for one in planners]
        assert offered == [[one["first"]] for one in planners]
        assert offered == [["gpt-oss-120b-v0.28.0"], ["gpt-oss-120b"]]
        data = planners[0]
        files = {
            path.name: path.stat().st_size
            for path in (small_site / "_static" / "planner").iterdir()
        }
        others = ("LICENSES.txt", "doctor.zip")
        assert data["size"] == sum(size for name, size in files.items() if name not in others)
        assert planner.NONE in (small_site / "models/embedded.html").read_text("utf-8")

    def test_a_model_has_one_page_and_its_recipes_keep_their_addresses(
        self, small_site: Path
    ) -> None:
        text = (small_site / "models/gpt-oss-120b.html").read_text("utf-8")
        for recipe in ("gpt-oss-120b", "gpt-oss-120b-v0.28.0"):
            assert f'class="sb-variant" id="recipe-{recipe}"' in text
        assert len(re.findall(r'id="[^"]*source-nvidia"', text)) <= 2, "an anchor a recipe"
        ids = re.findall(r'\sid="([^"]+)"', text)
        assert len(ids) == len(set(ids)), "no two elements have one anchor"
        old = (small_site / "models/gemma-4-31b-it-nvfp4.html").read_text("utf-8")
        assert 'url=gemma-4-31b.html#recipe-gemma-4-31b-it-nvfp4"' in old
        overview = (small_site / "notebooks/07_models.html").read_text("utf-8")
        assert 'href="../models/gemma-4-31b.html#recipe-gemma-4-31b-it-nvfp4"' in overview

    def test_a_second_build_leaves_it(self, small_site: Path, small_book: Project) -> None:
        before = (small_site / "index.html").stat().st_mtime_ns
        out = io.StringIO()
        outcome = build(small_book, out=out)
        assert (outcome.ok, outcome.ran) == (True, 0)
        assert "site: unchanged" in out.getvalue()
        assert (small_site / "index.html").stat().st_mtime_ns == before

    def test_plain_sphinx_builds_the_same_pages(
        self, small_site: Path, small_book: Project, tmp_path: Path
    ) -> None:
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-n",
            "-W",
            "-E",
            str(small_book.source_tree),
            str(tmp_path / "html"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        names = [
            {
                path.relative_to(folder)
                for path in folder.rglob("*.html")
                if "_static" not in path.parts
            }
            for folder in (small_site, tmp_path / "html")
        ]
        assert names[0] - {Path("index.html")} == names[1] - {Path("index.html")}

    def test_a_warning_is_a_problem_and_a_failed_page_shows_why(self, small_copy: Project) -> None:
        intro = small_copy.root / "book" / "intro.md"
        intro.write_text(intro.read_text("utf-8") + "\n{doc}`no-such-page`\n", "utf-8")
        chapter = small_copy.root / "notebooks" / "01_small.ipynb"
        chapter.write_text(
            chapter.read_text("utf-8").replace("print(21 * factor)", "21 / 0"), "utf-8"
        )
        outcome = build(small_copy, only="01_small", out=io.StringIO())
        assert str(outcome.failures["01_small"]).endswith("ZeroDivisionError: division by zero")
        assert any(
            "book/intro.md" in problem and "no-such-page" in problem for problem in outcome.problems
        )
        page = (small_copy.html / "notebooks/01_small.html").read_text("utf-8")
        assert "failed when the book was built" in page
        assert "ZeroDivisionError" in page


def shown(page: str) -> str:
    """Return what a page shows in prose: its body without scripts, code and figures."""
    body = page.partition("<body")[2].partition(">")[2]
    hidden = r"<(script|style|pre|code|svg|template|textarea)\b.*?</\1>"
    prose = re.sub(hidden, " ", body, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", prose))


def test_what_a_page_shows() -> None:
    page = "<body><p>It is <b>new</b>.</p><script>anew</script><pre>beside</pre></body>"
    assert shown(page).split() == ["It", "is", "new", "."]


@pytest.mark.site
def test_no_built_page_has_a_banned_word(small_site: Path) -> None:
    """Sentences that are put together for a page are in no source."""
    pages_ = sorted(small_site.rglob("*.html"))
    lines = [
        f"{page.relative_to(small_site)}: {word}"
        for page in pages_
        for word in stiff_words(shown(page.read_text("utf-8")))
    ]
    assert len(pages_) > 30
    assert "\n".join(lines) == ""
