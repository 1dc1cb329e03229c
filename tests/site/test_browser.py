"""The site in a real browser: light and dark, narrow and wide, and the table's script."""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Tab, served
from matplotlib.image import imread
from sparkbook.runner.project import Project

pytestmark = pytest.mark.browser

PAGES = [
    "book/intro",
    "book/reference/building",
    "notebooks/01_small",
    "notebooks/07_models",
    "models/gemma-4-31b",
    "models/gpt-oss-120b",
    "flags/index",
    "flags/gpu-memory-utilization",
    "rules/log1",
    "rules/mem",
    "search",
]

DRAWN_LATE = {"book/intro", "search"}
"""These have a diagram or results to wait for."""

MOST_BYTES = 300_000
LARGE = {"rules/log7.html": 700_000}
"""One table of all forms that other programs' messages take: owners search it as a whole."""
"""Of one page, without its pictures."""

SETTLED = (
    "Promise.race([Promise.allSettled(document.getAnimations().map(a => a.finished)), new Promise(r"
    " => setTimeout(r, 2000))]).then(() => 0)"
)
"""Done when no colour is on its way from one scheme to the other any more."""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""How many pixels the page is wider than the window."""
SCROLLING = """[...document.querySelectorAll('.bd-article table')].filter((table) => {
  let box = table;
  while (box && !(box.scrollWidth > box.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(box).overflowX))) box = box.parentElement;
  return box && box.contains(table) && box.closest('.bd-article');
}).map((table) => table.rows[0].textContent)"""
"""The heads of tables that have to be scrolled sideways."""


@pytest.fixture(scope="module")
def address(small_site: Path) -> Iterator[str]:
    with served(small_site) as there:
        yield there


@pytest.fixture(scope="module")
def axe(small_book: Project) -> str:
    return (small_book.vendor / "tests" / "axe.min.js").read_text("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_well(
    tab: Tab, address: str, axe: str, page: str, width: int, scheme: str
) -> None:
    tab.open(f"{address}/{page}.html", width, scheme, rest_ms=500 if page in DRAWN_LATE else 150)
    assert tab.complaints() == []
    assert [
        url for url in tab.asked_for() if not url.startswith((address, "data:", "blob:"))
    ] == [], "nothing is loaded from elsewhere"
    wide = tab.evaluate(TOO_WIDE)
    assert wide <= 0, f"the page is {wide} px wider than the window"
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    tab.evaluate(SETTLED)
    tab.evaluate(f"{axe}; 0")
    assert tab.evaluate(AXE) == []


def test_every_page_is_light_and_whole(tab: Tab, address: str, small_site: Path) -> None:
    """No error in the console, no request to elsewhere, no more bytes or wider than a page may be:
    on every page that there is.
    """
    pages = sorted(
        path.relative_to(small_site).as_posix()
        for path in small_site.rglob("*.html")
        if "_static" not in path.parts
    )
    assert {"flags/max-model-len.html", "rules/spec.html", "genindex.html"} <= set(pages)
    for page in pages:
        if b'http-equiv="refresh"' in (small_site / page).read_bytes()[:500].lower():
            continue  # it only leads on to another page
        size = len((small_site / page).read_bytes())
        assert size < LARGE.get(page, MOST_BYTES), f"{page} has {size} bytes"
        tab.open(f"{address}/{page}", 390, "dark", rest_ms=30)
        assert tab.complaints() == [], page
        assert [
            url for url in tab.asked_for() if not url.startswith((address, "data:", "blob:"))
        ] == [], page
        assert tab.evaluate(TOO_WIDE) <= 0, page
        assert (
            tab.evaluate(
                "[...document.querySelectorAll('th')].filter((head) =>"
                " !head.textContent.trim()).length"
            )
            == 0
        ), page
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=1300,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        assert tab.evaluate(SCROLLING) == [], f"{page}: a table does not fit a desktop's window"


def test_a_tab_chosen_on_one_page_is_chosen_on_the_next(tab: Tab, address: str) -> None:
    chosen = (
        "[...document.querySelectorAll('.sd-tab-set input:checked')].map((i) =>"
        " i.nextElementSibling.textContent.trim())"
    )
    tab.open(f"{address}/models/gpt-oss-120b.html", 1000, "light")
    assert tab.evaluate(chosen)[:2] == ["docker", "with sparkbook"]
    tab.evaluate(
        "[...document.querySelectorAll('.sd-tab-label')].find((l) =>"
        " l.textContent.includes('sparkrun')).click()"
    )
    assert "sparkrun" in tab.evaluate(chosen)
    tab.open(f"{address}/models/gemma-4-31b.html", 1000, "light")
    assert "sparkrun" in tab.evaluate(chosen)
    tab.evaluate("localStorage.clear()")


@pytest.mark.parametrize(
    ("page", "field", "verdict"),
    [("models/gpt-oss-120b", ".sb-planner", "fit"), ("book/paste", ".sb-paste", "Fault")],
)
def test_an_answer_of_the_command_reads_well(
    tab: Tab, address: str, axe: str, page: str, field: str, verdict: str
) -> None:
    """What it answers is compared in test_planner.py and test_pasted.py."""
    tab.open(f"{address}/{page}.html", 1400, "light")
    tab.evaluate(
        "{ const field = document.getElementById('sb-paste-text'); if (field) field.value ="
        " 'RuntimeError: NCCL error: unhandled system error'; }"
    )
    tab.evaluate("document.querySelector('.sb-planner-run').click()")
    deadline = time.monotonic() + 90
    while not tab.evaluate("!document.querySelector('.sb-planner-run').disabled"):
        assert time.monotonic() < deadline, "the page gives no answer"
        time.sleep(0.1)
    said = tab.evaluate("document.querySelector('.sb-planner-verdict strong').textContent")
    assert verdict in said
    tab.evaluate(f"{axe}; 0")
    for width, scheme in ((1400, "light"), (390, "dark")):
        tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        tab.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        tab.evaluate("new Promise((done) => setTimeout(done, 100))")
        tab.evaluate(SETTLED)
        assert tab.evaluate(AXE.replace("document", f"'{field}'", 1)) == []
        assert tab.evaluate(TOO_WIDE) <= 0
    assert tab.complaints() == []


def test_a_line_is_copied_as_it_stands(tab: Tab, address: str, small_site: Path) -> None:
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    tab.call(
        "Browser.grantPermissions",
        origin=address,
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
    )
    for page, button, source in (
        ("models/gpt-oss-120b", ".sd-tab-content button.copybtn", ".sd-tab-content pre"),
        ("book/intro", ".sb-choose-copy", "#sb-choose-line"),
    ):
        tab.open(f"{address}/{page}.html", 1000, "light")
        # A browser lets a page copy only what a reader pressed.
        tab.call(
            "Runtime.evaluate",
            expression=f"document.querySelector('{button}').click()",
            userGesture=True,
        )
        copied = tab.evaluate(
            "new Promise((done) => setTimeout(done, 200)).then(() =>"
            " navigator.clipboard.readText())"
        )
        assert (
            copied.strip()
            == tab.evaluate(f"document.querySelector('{source}').textContent").strip()
        )
        assert copied.startswith(("sparkbook check", "export VLLM_API_KEY=", "docker run"))


def test_a_figure_that_is_wider_than_a_telephone_can_be_opened_alone(
    tab: Tab, tmp_path: Path
) -> None:
    (tmp_path / "a.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="700" height="300"/>', "utf-8"
    )
    static = Path(__file__).resolve().parents[2] / "book/_static"
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><style>{(static / 'sparkbook.css').read_text('utf-8')}</style><div"
        " class='bd-article-container'><div class='cell_output'><img"
        f" src='a.svg'></div></div><script>{(static / 'access.js').read_text('utf-8')}</script>",
        "utf-8",
    )
    links = (
        "[...document.querySelectorAll('a.sb-whole-figure')].map((link) =>"
        " link.href.split('/').pop())"
    )
    for width, expected in ((390, ["a.svg"]), (1300, [])):
        tab.open(page.as_uri(), width, "light", rest_ms=30)
        assert tab.evaluate(links) == expected


def test_the_chooser_can_be_used_by_the_keyboard(tab: Tab, address: str) -> None:
    tab.open(f"{address}/book/intro.html", 390, "dark")
    answer = "document.getElementById('sb-choose-answer').textContent"
    before = tab.evaluate(answer)
    tab.evaluate("document.getElementById('sb-choose-model').focus()")
    for kind in ("rawKeyDown", "keyUp"):
        tab.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="ArrowUp",
            code="ArrowUp",
            windowsVirtualKeyCode=38,
        )
    assert tab.evaluate(answer) != before
    assert (
        tab.evaluate("document.getElementById('sb-choose-answer').getAttribute('aria-live')")
        == "polite"
    )


def test_the_chapters_can_be_taken_along(small_site: Path) -> None:
    for page in ("notebooks/01_small", "models/gpt-oss-120b"):
        text = (small_site / f"{page}.html").read_text("utf-8")
        assert "Run this on your Spark" in text
        assert f'{page.rpartition("/")[2]}.ipynb"' in text
    assert "-p recipe_id gpt-oss-120b" in re.sub(
        r"<[^>]+>", "", (small_site / "models/gpt-oss-120b.html").read_text("utf-8")
    )


def test_the_chooser_answers_in_one_screen(tab: Tab, address: str) -> None:
    tab.open(f"{address}/book/intro.html", 1300, "light")
    edge = "document.querySelector('%s').getBoundingClientRect().%s"
    top = tab.evaluate(edge % (".sb-choose", "top"))
    assert tab.evaluate(edge % ("#sb-choose-line", "bottom")) - top < 500, (
        "fit, speed and line beside each other"
    )
    assert tab.evaluate(edge % (".sb-choose-copy", "bottom")) - top < 600
    assert (
        tab.evaluate("document.querySelector('#sb-choose-answer .sb-facts').textContent").count(
            "tok/s"
        )
        >= 1
    )


def test_on_paper_there_is_nothing_to_press(tab: Tab, address: str) -> None:
    tab.open(f"{address}/book/intro.html", 800, "light")
    tab.call("Emulation.setEmulatedMedia", media="print")
    hidden = "getComputedStyle(document.querySelector('%s')).display"
    assert [
        tab.evaluate(hidden % css)
        for css in (".bd-sidebar-primary", ".sb-choose", ".sb-choose-copy")
    ] == ["none"] * 3
    assert tab.evaluate(
        "document.querySelector('#sb-choose-line').scrollHeight <="
        " document.querySelector('#sb-choose-line').clientHeight"
    )
    tab.call("Emulation.setEmulatedMedia", media="")


AXE = (
    "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((fault)"
    " => [fault.id, fault.nodes[0].html]))"
)
"""Everything that axe-core finds: headings, contrast, names, landmarks, alternative texts. Only its
first place of each is kept.
"""


def test_the_diagram_and_the_formula_are_drawn(tab: Tab, address: str) -> None:
    tab.open(f"{address}/book/intro.html", 1000, "light")
    waits = (
        "new Promise(done => { const look = (n) => ({}) ? done(true) : n ? setTimeout(look, 200, n"
        " - 1) : done(false); look(50); })"
    )
    assert tab.evaluate(waits.replace("({})", "document.querySelector('.mermaid svg')"))
    assert tab.evaluate(waits.replace("({})", "document.querySelector('mjx-container')"))


@pytest.mark.parametrize(
    ("system", "switch", "ground"),
    [
        ("light", "light", 0xFF),
        ("light", "dark", 0x12),
        ("dark", "light", 0xFF),
        ("dark", "dark", 0x12),
    ],
)
def test_a_figure_follows_the_switch_of_the_page(
    tab: Tab, address: str, system: str, switch: str, ground: int
) -> None:
    tab.open(f"{address}/models/gemma-4-31b.html", 1000, system)
    tab.evaluate(
        f"document.documentElement.dataset.theme = '{switch}'; new Promise((done) =>"
        " setTimeout(done, 100))"
    )
    assert _corner(tab, ground) == [ground] * 3
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert _corner(tab, 0xFF) == [0xFF] * 3, "paper is white"
    tab.call("Emulation.setEmulatedMedia", media="")


def _corner(tab: Tab, expected: int) -> list[int]:
    """The colour of the first figure's ground, as it is on the screen; looked at again while the
    page may still move below it.
    """
    box = (
        "(() => { const b = document.querySelector('.cell_output img').getBoundingClientRect();"
        " return [b.x + scrollX, b.y + scrollY] })()"
    )
    for _ in range(20):
        tab.evaluate("document.querySelector('.cell_output img').scrollIntoView()")
        x, y = tab.evaluate(box)
        clip = {"x": x + 3, "y": y + 3, "width": 4, "height": 4, "scale": 1}
        shot = tab.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )["data"]
        seen = [
            round(255 * float(part))
            for part in imread(io.BytesIO(base64.b64decode(shot)))[0, 0][:3]
        ]
        if seen == [expected] * 3:
            break
        time.sleep(0.1)
    return seen


def test_a_widget_is_shown_as_its_text(small_site: Path) -> None:
    text = (small_site / "notebooks/01_small.html").read_text("utf-8")
    assert "IntSlider(value=3)" in text
    assert "jupyter.widget" not in text


COLUMN = (
    "[...document.querySelectorAll('table.sb-overview tbody tr')].filter(row =>"
    " !row.hidden).map(row => row.cells[%d].textContent.trim())"
)
HEAD = "document.querySelectorAll('table.sb-overview th button')[%d].click()"


def test_the_table_sorts_numbers_and_words_and_keeps_unknown_last(tab: Tab, address: str) -> None:
    tab.open(f"{address}/notebooks/07_models.html", 1400, "light")
    tab.evaluate(HEAD % 5)
    sizes = tab.evaluate(COLUMN % 5)
    assert sorted(sizes, key=lambda size: (size == "–", float(size) if size != "–" else 0)) == sizes
    tab.evaluate(HEAD % 5)
    assert [size for size in tab.evaluate(COLUMN % 5) if size != "–"] == [
        size for size in sizes if size != "–"
    ][::-1]
    tab.evaluate(HEAD % 0)
    names = tab.evaluate(COLUMN % 0)
    assert names == sorted(names, key=str.lower)
    assert (
        tab.evaluate("document.querySelector('table.sb-overview th').getAttribute('aria-sort')")
        == "ascending"
    )


def test_the_filter_shows_what_matches(tab: Tab, address: str) -> None:
    tab.open(f"{address}/notebooks/07_models.html", 1400, "light")
    typed = (
        "const box = document.querySelector('.sb-filter input'); box.value = 'GEMMA nvfp4';"
        " box.dispatchEvent(new Event('input'))"
    )
    tab.evaluate(f"(() => {{ {typed} }})()")
    assert [name for name in tab.evaluate(COLUMN % 0) if "Gemma" not in name] == []
    assert tab.evaluate("document.querySelector('.sb-filter output').textContent") == "2 of 5"


def test_without_scripts_the_table_is_all_there(small_site: Path) -> None:
    text = (small_site / "notebooks/07_models.html").read_text("utf-8")
    assert text.count('href="../models/') >= 3
    start = (small_site / "book/intro.html").read_text("utf-8")
    assert (
        start.partition('id="sb-chooser-table"')[2].count('<th scope="row"><a href="../models/')
        == 2
    ), "those for a Spark that are not obsolete"
    assert "<thead><tr><th" in text
