"""The planner in a page answers what the command answers: what is packed for it, the same Python in
node, and a reader's browser.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Quiet, Tab, served
from sparkbook import recipes
from sparkbook.runner.project import here
from sparkbook.site import chooser, planner, vendor

ROOT = Path(__file__).resolve().parents[2]
IDS = [recipe.id for recipe in chooser.chosen(recipes.ids())]
OWN_LINE = "vllm serve openai/gpt-oss-20b --max-model-len 32768 --tensor-parallel-size 2"
COMPOSE = (
    "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    command:"
    " nvidia/Llama-3.3-70B-Instruct-NVFP4 --max-model-len 8192\n"
)
OTHER_LINES = [
    f"sparkbook plan {shlex.quote(OWN_LINE)} --context 131072",
    f"sparkbook plan {shlex.quote(COMPOSE)}",
    "sparkbook plan gpt-oss-120b --nodes 2",
    (
        "sparkbook plan gpt-oss-120b --fraction 0.5 --kv-dtype fp8 --seqs 16 --release 0.30.0"
        " --explain --cotenant other=16GiB"
    ),
    "sparkbook plan gpt-oss-20b --available-gib 64",
]
WRONG_LINES = [
    "sparkbook plan gpt-oss-120",
    "sparkbook plan gpt-oss-120b --context many",
    "sparkbook plan gpt-oss-120b --fraction 2",
    "sparkbook plan gpt-oss-120b --kv-dtype fp7",
    "sparkbook plan gpt-oss-120b --release 9.9.9",
    "sparkbook plan 'vllm serve'",
    "sparkbook plan ''",
    "sparkbook plan - ",
    "sparkbook plan gpt-oss-120b --no-such-option",
    "sparkbook plan gpt-oss-120b --meminfo /no/such/file",
    "sparkbook plan 'a quote",
]


SOME = list({recipes.load(name).family: name for name in IDS}.values())
"""A recipe of each family."""
LINES = [f"sparkbook plan {name}" for name in SOME] + OTHER_LINES + WRONG_LINES
EVERY = [f"sparkbook plan {name}" for name in IDS if name not in SOME] + LINES

HERE = """
import json, sys
before, opened = set(sys.modules), set()
sys.addaudithook(lambda event, given: opened.add(str(given[0])) if event == "open" else None)
from sparkbook.site import in_page
from sparkbook import cli
answers = {line: json.loads(in_page.answer(line, cli.main)) for line in json.load(sys.stdin)}
modules = {str(module.__file__) for name, module in list(sys.modules.items()) if name not in before and getattr(module, "__file__", None)}
json.dump([answers, sorted(modules | {name for name in opened if name.endswith((".json", ".yaml"))})], sys.stdout)
"""


def answered(monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]) -> dict[str, Any]:
    """What a page gets where the command does this."""
    monkeypatch.setenv("TYPER_USE_RICH", "0")  # as the module sets it for good where nobody has
    from sparkbook.site import in_page

    reply = in_page.answer("sparkbook plan gpt-oss-120b", command)
    return json.loads(reply, parse_constant=pytest.fail)


def test_a_fault_of_the_command_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise AttributeError("no such thing")

    found = answered(monkeypatch, broken)
    assert (found["exit"], found["told"]) == (2, None)
    assert "AttributeError: no such thing" in found["text"]


def test_what_no_page_can_read_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answered(monkeypatch, lambda: print('{"kv": Infinity}'))
    assert (found["exit"], found["told"]) == (0, None)


@functools.cache
def said_here(lines: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """What this Python answers to each line, in a process of its own, and every file that took:
    modules, and data that was read.
    """
    done = subprocess.run(
        [sys.executable, "-c", HERE],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, files = json.loads(done.stdout)
    return answers, files


def answer(line: str) -> dict[str, Any]:
    """Of one of `LINES`."""
    return said_here(tuple(LINES))[0][line]


@pytest.mark.slow
@pytest.mark.parametrize("line", [OTHER_LINES[4], WRONG_LINES[0], WRONG_LINES[1]])
def test_what_the_page_asks_is_the_command(line: str) -> None:
    command = [
        sys.executable,
        "-c",
        "from sparkbook import cli; cli.main()",
        *shlex.split(line)[1:],
    ]
    env = {**os.environ, "TYPER_USE_RICH": "0"}
    plain, told = (
        subprocess.run(
            [*command, *more],
            capture_output=True,
            text=True,
            check=False,
            env=env,
            stdin=subprocess.DEVNULL,
        )
        for more in ([], ["--json"])
    )
    found = answer(line)
    assert found["exit"] == plain.returncode
    assert found["text"] == (plain.stderr if plain.returncode == 2 else plain.stdout).rstrip()
    assert found["told"] == (None if plain.returncode == 2 else json.loads(told.stdout))


@pytest.mark.parametrize("line", WRONG_LINES)
def test_a_bad_line_is_told_in_words(line: str) -> None:
    found = answer(line)
    assert (found["exit"], found["told"]) == (2, None)
    assert "Traceback" not in found["text"]
    assert re.search(r"^(sparkbook|Error): \S", found["text"], re.MULTILINE), found["text"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive, with something in the place of what is compiled."""
    folder = tmp_path_factory.mktemp("wasm")
    (folder / "pydantic_core").mkdir()
    (folder / "pydantic_core" / "core.so").write_bytes(b"\0asm")
    archive = planner.pack(folder)
    assert archive == planner.pack(folder), "the same files give the same archive"
    return archive


def test_whatever_the_command_opens_is_packed(packed: bytes) -> None:
    """It follows the command: a module or a data file that a plan begins to need, and the archive
    lacks, fails here.
    """
    names = set(zipfile.ZipFile(io.BytesIO(packed)).namelist())
    _, files = said_here(tuple(LINES))
    installed = next(path for path in sys.path if path.endswith("site-packages"))
    needed = {
        name.removeprefix(f"{folder}/")
        for folder in (str(ROOT / "lib"), installed)
        for name in files
        if name.startswith(f"{folder}/")
    }
    missing = {name for name in needed - names if not name.endswith(".so")}
    assert missing == set(), "planner.OWN or planner.OTHERS has to name them"
    assert "sparkbook/plan/measured.yaml" in needed & names


def test_what_is_compiled_is_the_version_that_is_installed() -> None:
    wanted = re.search(
        r"^pydantic-core==\S+", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE
    )
    assert wanted is not None
    assert f"{wanted[0]} " in (ROOT / "requirements-wasm.txt").read_text("utf-8").replace(
        " \\", "  "
    )


def test_every_library_that_comes_along_has_its_licence() -> None:
    named = {name.split()[0] for name, text in planner._licences() if len(text) > 300}
    assert named == set(planner.OTHERS)


# ---- with Python in WebAssembly


@pytest.fixture(scope="module")
def mini_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one page that holds nothing but the planner, with everything that it loads."""
    root = tmp_path_factory.mktemp("site")
    project = here()
    vendor.ensure(project)
    shutil.copytree(ROOT / "book/_static", root / "_static")
    shutil.copytree(project.vendor / "site" / "planner", root / "_static" / "planner")
    size = planner.write(project, root / "_static" / "planner")
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Planner</title><link'
        ' rel="icon" href="data:,">'
    )
    style = '<link rel="stylesheet" href="../_static/sparkbook.css">'
    block = planner.block(planner.data(IDS, size))
    (root / "notebooks").mkdir()
    page = (
        f"{head}{style}<main><h1>Planner</h1>{block}</main><script defer"
        ' src="../_static/planner.js"></script>'
    )
    (root / "notebooks" / "page.html").write_text(page, "utf-8")
    return root


@pytest.mark.site
def test_it_is_the_same_answer_for_every_recipe(mini_site: Path, tmp_path: Path) -> None:
    """Every recipe, launch lines, several Sparks and bad input: Pyodide in node says what this
    Python says.
    """
    hub = "sparkbook plan gpt-oss-120b --hub"
    (tmp_path / "lines.json").write_text(json.dumps([*EVERY, hub]), "utf-8")
    places = [mini_site / "_static/planner", tmp_path / "lines.json", tmp_path / "said.json"]
    command = [vendor.node(), Path(__file__).with_name("planner.mjs"), *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads((tmp_path / "said.json").read_text("utf-8"))
    answers, _ = said_here(tuple(EVERY))
    *told, without_network = said["answers"]
    assert told == [answers[line] for line in EVERY]
    assert (
        "this line needs more than the page has (No module named 'huggingface_hub')"
        in without_network["text"]
    )


class Served(Quiet):
    """The mini site, without its library where `without` says so."""

    without = ""

    def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
        if Served.without and self.path.endswith(Served.without):
            self.send_error(404)
        else:
            super().do_GET()


@pytest.fixture(scope="module")
def address(mini_site: Path) -> Iterator[str]:
    with served(mini_site, Served) as there:
        yield f"{there}/notebooks/page.html"


def until(tab: Tab, true: str, seconds: float = 60) -> None:
    """Wait until an expression is true in the page."""
    deadline = time.monotonic() + seconds
    while not tab.evaluate(f"!!({true})"):
        assert time.monotonic() < deadline, (
            f"not within {seconds} s: {true}; shown is {tab.evaluate(ANSWER)!r}"
        )
        time.sleep(0.05)


ANSWER = "document.querySelector('.sb-planner-answer').textContent"
RUN = "document.querySelector('.sb-planner-run')"
ANSWERED = f"!{RUN}.disabled && {ANSWER}"
SET = """((values) => {
  for (const box of document.querySelectorAll('.sb-planner-form :is(input, select, textarea)')) {
    const name = box.id.split('-').pop();
    box.value = values[name] ?? (name === 'recipe' ? 'gpt-oss-120b' : '');
    box.dispatchEvent(new Event('input', { bubbles: true }));
  }
})(%s)"""
SHOWN = """({
  line: document.querySelector('.sb-planner-form pre').textContent,
  text: document.querySelector('.sb-planner-answer pre').textContent,
  verdict: document.querySelector('.sb-planner-verdict strong').textContent,
  findings: [...document.querySelectorAll('.sb-planner-answer .finding')].map((one) => {
    const link = one.querySelector('a');
    return [one.querySelector('strong').textContent, link.textContent, new URL(link.href).pathname + new URL(link.href).hash];
  }),
})"""

CHOICES: dict[str, dict[str, str]] = {
    "gpt-oss-120b": {},
    "qwen3.6-27b-nvfp4 --context 131072 --seqs 8 --kv-dtype fp8": {
        "recipe": "qwen3.6-27b-nvfp4",
        "context": "131072",
        "seqs": "8",
        "kv": "fp8",
    },
    "gemma-4-31b-it-nvfp4 --fraction 0.6": {"recipe": "gemma-4-31b-it-nvfp4", "fraction": "0.6"},
    "gpt-oss-120b --available-gib 64 --release 0.30.0 --cotenant other=16GiB": {
        "available": "64",
        "release": "0.30.0",
        "further": "--cotenant other=16GiB",
    },
    "gpt-oss-120b --nodes 2": {"nodes": "2"},
    "gpt-oss-120b --seqs 4": {"seqs": "4", "nodes": "1"},
    shlex.quote(OWN_LINE): {"recipe": "", "line": OWN_LINE},
    "gpt-oss-120b --context many": {"context": "many"},
    shlex.quote("vllm serve it's"): {"recipe": "", "line": "vllm serve it's"},
}
"""What follows `sparkbook plan`, and what to fill in for it; a field that is not named stays empty."""


@pytest.mark.browser
class TestPage:
    """In Chromium."""

    def test_nothing_is_loaded_before_the_button_and_nothing_from_elsewhere_after_it(
        self, tab: Tab, address: str
    ) -> None:
        tab.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        tab.open(address, 1000, "light")
        asked = [url for url in tab.asked_for() if not url.startswith("data:")]
        assert [url.rpartition("/")[2] for url in asked] == [
            "page.html",
            "sparkbook.css",
            "planner.js",
        ]
        assert re.search(
            r"downloads 1\d MB from this site, once", tab.evaluate(f"{RUN}.textContent")
        )
        tab.evaluate(f"{RUN}.click()")
        while not (
            attached := [
                event for event in tab.events if event.get("method") == "Target.attachedToTarget"
            ]
        ):
            tab.evaluate("new Promise((done) => setTimeout(done, 20))")
        session = attached[0]["params"]["sessionId"]
        tab.call("Network.enable", session=session)
        tab.call("Runtime.runIfWaitingForDebugger", session=session)
        until(tab, ANSWERED)
        tab.call(
            "Target.setAutoAttach", autoAttach=False, waitForDebuggerOnStart=False, flatten=True
        )
        loaded = [url for url in tab.asked_for() if not url.startswith("data:")][len(asked) :]
        assert {url.rpartition("/")[2] for url in loaded} >= {
            "planner-worker.mjs",
            "pyodide.asm.wasm",
            "python_stdlib.zip",
            "library.zip",
        }
        assert [
            url for url in loaded if not url.startswith(address.removesuffix("notebooks/page.html"))
        ] == []
        assert tab.complaints() == []

    @pytest.mark.parametrize("words", CHOICES)
    def test_the_page_says_what_the_command_says(self, tab: Tab, words: str) -> None:
        tab.evaluate(SET % json.dumps(CHOICES[words]))
        tab.evaluate("document.querySelector('.sb-planner-form').requestSubmit()")
        until(tab, ANSWERED)
        answers, _ = said_here(tuple(f"sparkbook plan {words}" for words in CHOICES))
        shown, wanted = tab.evaluate(SHOWN), answers[f"sparkbook plan {words}"]
        assert shown["line"] == wanted["line"]
        assert shown["text"] == wanted["text"]
        if wanted["told"]:
            assert shown["verdict"] == wanted["told"]["summary"]["verdict"]
            assert shown["findings"] == [
                [one["severity"], one["rule"], f"/{one['why']}"]
                for one in wanted["told"]["findings"]
            ]
            assert tab.evaluate("document.activeElement.className") == "sb-planner-answer"

    def test_an_empty_line_of_ones_own_is_asked_for(self, tab: Tab, address: str) -> None:
        tab.open(address, 1000, "light")
        tab.evaluate(SET % json.dumps({"recipe": "", "line": " "}))
        tab.evaluate("document.querySelector('.sb-planner-form').requestSubmit()")
        assert "Paste a launch line first" in tab.evaluate(ANSWER)
        assert tab.evaluate(f"!{RUN}.disabled")

    def test_loading_can_be_cancelled_and_begun_again(self, tab: Tab, address: str) -> None:
        tab.open(address, 1000, "light")
        tab.evaluate(
            f"{RUN}.click(); [...document.querySelectorAll('.sb-planner button')].find((b) =>"
            " b.textContent === 'Cancel').click()"
        )
        until(tab, f"{ANSWER}.startsWith('Cancelled')")
        tab.evaluate(f"{RUN}.click()")
        until(tab, f"!{ANSWER}.startsWith('Cancelled')")
        assert tab.evaluate("document.querySelector('.sb-planner-verdict strong').textContent") in (
            "fits",
            "may fit",
        )

    def test_a_file_that_is_missing_is_told(self, tab: Tab, address: str) -> None:
        Served.without = "library.zip"
        try:
            tab.open(f"{address}?again", 1000, "light")
            tab.call("Network.setCacheDisabled", cacheDisabled=True)
            tab.evaluate("caches.keys()")
            tab.evaluate(f"{RUN}.click()")
            until(tab, ANSWERED)
            assert "library.zip" in tab.evaluate(ANSWER)
            assert "run the line above where sparkbook is installed" in tab.evaluate(ANSWER)
        finally:
            Served.without = ""

    def test_a_page_opened_as_a_file_says_what_to_do(self, tab: Tab, mini_site: Path) -> None:
        tab.open((mini_site / "notebooks" / "page.html").as_uri(), 1000, "light")
        tab.evaluate(f"{RUN}.click()")
        assert "make serve-site" in tab.evaluate(ANSWER)
        assert tab.complaints() == []
