"""The search page finds the right signature for a pasted line: each is the line of a recorded log
on which `diagnose` rests its answer.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from chromium import browser, served
from sparkbook import logs, recipes, rules
from sparkbook.logs.signatures import signatures
from sparkbook.runner import notebooks
from sparkbook.site import model_pages, questions, search, vendor

MODELS = ["gpt-oss-120b", "qwen3.8-27b-fp8", "qwen3.8-27b-nvfp4", "qwen3-vl-embedding-8b"]
PAGES = {
    "notebooks/10_clients.html": ["Clients", "Open WebUI in a container", "A coding agent"],
    "book/reference/network.html": ["The server on your network", "TLS by a proxy"],
}
ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "data" / "logs"


def pasted() -> list[tuple[str, str]]:
    """For each recorded log with a fault: the raw line that holds the evidence, and the signature."""
    found = []
    for file in sorted(LOGS.glob("*.log")):
        primary = logs.diagnose(file).primary
        if primary is None or primary.severity != "error" or not primary.evidence:
            continue
        number, _, evidence = primary.evidence.removeprefix("line ").partition(": ")
        head = re.sub(r"^\(\w+\) ", "", evidence)[:30]
        lines = re.sub(
            r"\x1b\[[0-9;]*m", "", file.read_text("utf-8", errors="replace")
        ).splitlines()[int(number) - 1 :]
        start = next((i for i, line in enumerate(lines) if head in line), None)
        if start is None:
            assert re.match(r"\w+(Error|Exception) Process ", head), (
                evidence
            )  # an exception without a word: nothing that one would paste
            continue
        text = lines[start]
        while len(text) < min(len(evidence), 120):  # an error of several lines is pasted as a whole
            start += 1
            text += f" {lines[start].strip()}"
        found.append((text, primary.rule))
    return found


def test_every_pattern_is_one_in_the_script_as_well() -> None:
    text = search.script(["max-model-len"], MODELS)
    assert "(?P<" not in text
    assert text.count('"id":') == len(signatures())


SEARCH = """
const [search, signatures, query] = process.argv.slice(1);
const fs = require("fs"), load = (file) => (0, eval)(fs.readFileSync(file, "utf-8"));
const element = () => ({ append() {}, before() {}, addEventListener(_, act) { loaded = act; } });
let loaded, longest = 0, tries = 0;
globalThis.window = globalThis;
globalThis.location = { search: "?q=" + query.repeat(4000) };
globalThis.document = { getElementById: element, createElement: element, head: element() };
load(signatures);
load(search);
const test = RegExp.prototype.test;
RegExp.prototype.test = function (text) {
  longest = Math.max(longest, text.length), tries++;
  return test.call(this, text.slice(0, 100));
};
loaded();
console.log(longest, tries > 100);
"""


def test_no_pattern_is_tried_on_a_long_text(tmp_path: Path) -> None:
    (tmp_path / "signatures.js").write_text(search.script(["max-model-len"], MODELS), "utf-8")
    files = [ROOT / "book/_static/search.js", tmp_path / "signatures.js"]
    done = subprocess.run(
        [vendor.node(), "-e", SEARCH, *files, "weight "], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2000 true\n"


def test_headings_of_a_book(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    text = "# On *TLS*\n\n```bash\n# no heading\n```\n\n## Keys for `vllm`\n"
    (tmp_path / "book" / "network.md").write_text(text, "utf-8")
    (tmp_path / "book" / "_chooser.md").write_text("# no page\n", "utf-8")
    assert search.headings(tmp_path) == {"book/network.html": ["On TLS", "Keys for vllm"]}


ASK = """
const [search, signatures, ...queries] = process.argv.slice(1);
const fs = require("fs"), load = (file) => (0, eval)(fs.readFileSync(file, "utf-8"));
const element = () => ({ append(...all) { (this.inside ??= []).push(...all); }, before(place) { shown = place; },
  addEventListener(_, act) { loaded = act; } });
const links = (one) => (one?.href ? [one.href] : (one?.inside ?? []).flatMap(links));
let loaded, shown;
globalThis.window = globalThis;
globalThis.document = { getElementById: element, createElement: element, head: element() };
load(signatures);
console.log(JSON.stringify(queries.map((query) => {
  globalThis.location = { search: "?q=" + encodeURIComponent(query) };
  load(search);
  loaded();
  return links(shown);
})));
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[list[str]]]:
    """Asks the search page of this book, with its headings, rules and recipes."""
    book = tmp_path_factory.mktemp("book")
    for name in ("book", "notebooks"):
        shutil.copytree(ROOT / name, book / name, ignore=shutil.ignore_patterns(".*"))
    data = book / "signatures.js"
    data.write_text(search.script(["max-model-len"], recipes.ids(), search.headings(book)), "utf-8")

    def ask(queries: list[str]) -> list[list[str]]:
        files = [ROOT / "book/_static/search.js", data]
        line = [vendor.node(), "-e", ASK, *files, *queries]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout))

    return ask


def text_of(address: str) -> str:
    """What a page of the site is made from; of one that is generated, what goes into it."""
    page, _, anchor = address.partition("#")
    folder, name = page.removesuffix(".html").split("/", 1)
    if folder == "models":
        ours = model_pages.by_page(recipes.ids())[name]
        return "\n".join(f"{one.id} {one.summary}" for one in ours)
    if folder == "rules":
        rule = rules.find(anchor.upper())
        assert rule.address == address
        return f"{rule.heading}\n{rule.text}"
    if (chapter := ROOT / folder / f"{name}.ipynb").is_file():
        cells = notebooks.read(chapter)["cells"]
        return "\n".join(cell["source"] for cell in cells)
    return (ROOT / folder / f"{name}.md").read_text("utf-8")


def test_each_question_has_a_page_that_answers_it() -> None:
    listed = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    known = re.findall(r"'(?:file|root)': '([^']+)'", str(listed))
    assert len(questions.questions()) >= 22
    for one in questions.questions():
        assert " ".join(one.says.split()) in " ".join(text_of(one.page).split()), one.question
        if one.page.startswith(("book/", "notebooks/")):
            assert one.page.removesuffix(".html") in known, one.page


def test_the_search_finds_the_page_of_each_question(found) -> None:
    asked = [(one, query) for one in questions.questions() for query in (one.question, *one.search)]
    results = found([query for _, query in asked])
    for (one, query), addresses in zip(asked, results, strict=True):
        assert one.page in addresses[:5], (query, addresses)
    lines = pasted()
    for (line, rule), addresses in zip(lines, found([line for line, _ in lines]), strict=True):
        assert signatures()[rule].address in addresses[:3], line


@pytest.mark.browser
def test_pasted_lines_find_their_signature(tmp_path: Path) -> None:
    lines = pasted()
    assert len(lines) >= 10
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "search.js").write_text(
        (ROOT / "book/_static/search.js").read_text("utf-8"), "utf-8"
    )
    (tmp_path / "_static" / "signatures.js").write_text(
        search.script(["max-model-len"], MODELS, PAGES), "utf-8"
    )
    head = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
    page = f'{head}<div id="search-results"></div><script src="_static/search.js"></script>'
    (tmp_path / "search.html").write_text(page, "utf-8")
    with served(tmp_path) as address, browser(tmp_path / "profile") as tab:

        def hits(line: str) -> list[str]:
            tab.open(f"{address}/search.html?q={quote(line)}", 1000, "light")
            assert tab.complaints() == []
            return tab.evaluate(
                "[...document.querySelectorAll('#sb-recognized a')].map((a) =>"
                " a.getAttribute('href'))"
            )

        for line, rule in lines:
            assert signatures()[rule].address in hits(line)[:3], (rule, line)
        assert hits("how do I choose a model") == []
        assert hits("give --max_model_len 4096") == ["flags/max-model-len.html"]
        for query in ("max_model_len", "--no-max-model-len", "Max-Model-Len"):
            assert hits(query)[0] == "flags/max-model-len.html", query
        assert hits("what is flag102?") == ["rules/flag.html#flag102"]
        assert hits("LOG101")[0] == "rules/log1.html#log101"
        for query in ("gpt-oss-120b", "openai/gpt-oss-120b", "gpt-oss 120B"):
            assert hits(query)[0] == "models/gpt-oss-120b.html", query
        assert hits("Qwen3.8")[0] == "models/qwen3.8-27b.html"
        assert hits("Qwen3.8")[1] == "models/qwen3.8-27b.html#recipe-qwen3.8-27b-nvfp4"
        assert hits("embedding")[0] == "models/qwen3-vl-embedding-8b.html"
        assert "notebooks/10_clients.html" in hits("open webui")
        assert hits("TLS") == ["book/reference/sharing.html", "book/reference/network.html"]
        assert hits("out of memory")[0].startswith("rules/log1.html")
        assert "rules/log4.html#log404" in hits("port"), "a word of a title"
        assert "rules/log2.html#log203" not in hits("port"), "not the end of one, as in support"
        wrong = tab.evaluate(f"(() => {{{EXAMPLES}}})()")
    assert wrong == []


EXAMPLES = """
  const has = (pattern, text) => new RegExp(pattern, 'i').test(text);
  return window.sparkbookSignatures.signatures.filter((s) => !s.pattern.some((p) => has(p, s.example))).map((s) => s.id);
"""
"""The signatures whose own example their patterns do not find in the browser."""
