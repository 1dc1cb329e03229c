"""The site in a real browser: light and dark, narrow and wide, and the table's script."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Tab, browser, find
from sparkbook.book.project import Project

pytestmark = [pytest.mark.browser, pytest.mark.skipif(find() is None, reason="no Chromium on this machine")]

PAGES = [
    "book/intro",
    "book/reference/building",
    "notebooks/01_small",
    "notebooks/07_models",
    "models/gemma-4-31b-it-nvfp4",
    "models/gpt-oss-120b",
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(small_site: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(small_site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def axe(small_book: Project) -> str:
    return (small_book.vendor / "tests" / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_well(tab: Tab, address: str, axe: str, page: str, width: int, scheme: str) -> None:
    tab.open(f"{address}/{page}.html", width, scheme)
    assert tab.complaints() == []
    assert [url for url in tab.asked_for() if not url.startswith((address, "data:", "blob:"))] == [], "nothing is loaded from elsewhere"
    wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"the page is {wide} px wider than the window"
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    tab.evaluate(f"{axe}; 0")
    assert tab.evaluate(AXE) == []


AXE = "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((fault) => [fault.id, fault.nodes[0].html]))"
"""Everything that axe-core finds: headings, contrast, names, landmarks, alternative texts. Only its first place of each is kept."""


def test_the_diagram_and_the_formula_are_drawn(tab: Tab, address: str) -> None:
    tab.open(f"{address}/book/intro.html", 1000, "light")
    waits = "new Promise(done => { const look = (n) => ({}) ? done(true) : n ? setTimeout(look, 200, n - 1) : done(false); look(50); })"
    assert tab.evaluate(waits.replace("({})", "document.querySelector('.mermaid svg')"))
    assert tab.evaluate(waits.replace("({})", "document.querySelector('mjx-container')"))


def test_a_widget_is_shown(tab: Tab, address: str) -> None:
    tab.open(f"{address}/notebooks/01_small.html", 1000, "light")
    assert tab.evaluate(
        "new Promise(done => { const look = (n) => document.querySelector('.widget-slider') ? done(true) : n ? setTimeout(look, 200, n - 1)"
        " : done(false); look(50); })"
    )


COLUMN = (
    "[...document.querySelectorAll('table.sb-overview tbody tr')].filter(row => !row.hidden).map(row => row.cells[%d].textContent.trim())"
)
HEAD = "document.querySelectorAll('table.sb-overview th button')[%d].click()"


def test_the_table_sorts_numbers_and_words_and_keeps_unknown_last(tab: Tab, address: str) -> None:
    tab.open(f"{address}/notebooks/07_models.html", 1400, "light")
    tab.evaluate(HEAD % 5)
    sizes = tab.evaluate(COLUMN % 5)
    assert sorted(sizes, key=lambda size: (size == "–", float(size) if size != "–" else 0)) == sizes
    tab.evaluate(HEAD % 5)
    assert [size for size in tab.evaluate(COLUMN % 5) if size != "–"] == [size for size in sizes if size != "–"][::-1]
    tab.evaluate(HEAD % 0)
    names = tab.evaluate(COLUMN % 0)
    assert names == sorted(names, key=str.lower)
    assert tab.evaluate("document.querySelector('table.sb-overview th').getAttribute('aria-sort')") == "ascending"


def test_the_filter_shows_what_matches(tab: Tab, address: str) -> None:
    tab.open(f"{address}/notebooks/07_models.html", 1400, "light")
    typed = "const box = document.querySelector('.sb-filter input'); box.value = 'GEMMA nvfp4'; box.dispatchEvent(new Event('input'))"
    tab.evaluate(f"(() => {{ {typed} }})()")
    assert [name for name in tab.evaluate(COLUMN % 0) if "Gemma" not in name] == []
    assert tab.evaluate("document.querySelector('.sb-filter output').textContent") == "1 of 3"


def test_without_scripts_the_table_is_all_there(small_site: Path) -> None:
    text = (small_site / "notebooks/07_models.html").read_text("utf-8")
    assert text.count('href="../models/') >= 3
    assert "<thead><tr><th" in text
