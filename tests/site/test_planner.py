"""The planner in a page answers what the command answers: the same Python in node, and a reader's
browser.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Quiet, Tab, served
from in_browser import (
    ANSWER,
    ANSWERED,
    RUN,
    archived,
    asked,
    loaded_from,
    make_site,
    needed,
    said_here,
    said_in_node,
    until,
    write_page,
)
from sparkbook import recipes
from sparkbook.site import chooser, planner

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


def answered(monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]) -> dict[str, Any]:
    """What a page gets where the command does this."""
    monkeypatch.setenv("TYPER_USE_RICH", "0")  # as the module sets it for good where nobody has
    from sparkbook.cli.output import listeners
    from sparkbook.site.in_page import Command

    reply = Command(command, listeners).answer("sparkbook plan gpt-oss-120b")
    return json.loads(reply, parse_constant=pytest.fail)


def test_a_fault_of_the_command_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise AttributeError("no such thing")

    found = answered(monkeypatch, broken)
    assert (found["exit"], found["told"]) == (2, None)
    assert "AttributeError: no such thing" in found["text"]


def test_what_no_page_can_read_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkbook.cli.output import answer

    found = answered(monkeypatch, lambda: answer(False, {"kv": float("inf")}, ["one line"]))
    assert (found["exit"], found["text"], found["told"]) == (0, "one line", None)


def answer(line: str) -> dict[str, Any]:
    """Of one of `LINES`."""
    return said_here(tuple(LINES))[0][LINES.index(line)]


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


def test_whatever_the_command_opens_is_packed() -> None:
    """It follows the command: a module or a data file that a plan begins to need, and the archive
    lacks, fails here.
    """
    _, files = said_here(tuple(LINES))
    missing = needed(files) - archived("library")
    assert missing == set(), "packed.LIBRARY or packed.OTHERS has to name them"
    assert "sparkbook/plan/measured.yaml" in needed(files)


# ---- with Python in WebAssembly


@pytest.fixture(scope="module")
def mini_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one page that holds nothing but the planner, with everything that it loads."""
    root = tmp_path_factory.mktemp("site")
    sizes = make_site(root)
    write_page(root, "page", planner.block(planner.data(IDS, sizes.planner)), "planner.js")
    return root


@pytest.mark.site
def test_it_is_the_same_answer_for_every_recipe(mini_site: Path, tmp_path: Path) -> None:
    """Every recipe, launch lines, several Sparks and bad input: Pyodide in node says what this
    Python says.
    """
    hub = "sparkbook plan gpt-oss-120b --hub"
    *told, without_network = said_in_node(mini_site, tmp_path, [*EVERY, hub], "library")
    assert told == said_here(tuple(EVERY))[0]
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
        tab.open(address, 1000, "light")
        assert [url.rpartition("/")[2] for url in asked(tab)] == [
            "page.html",
            "sparkbook.css",
            "page.js",
            "planner.js",
        ]
        assert re.search(
            r"downloads 1\d MB from this site, once", tab.evaluate(f"{RUN}.textContent")
        )
        loaded = loaded_from(tab, f"{RUN}.click()")
        assert {url.rpartition("/")[2] for url in loaded} == {
            "page-worker.mjs?library",
            "page-python.mjs",
            "pyodide.mjs",
            "pyodide.asm.mjs",
            "pyodide.asm.wasm",
            "pyodide-lock.json",
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
        shown, wanted = tab.evaluate(SHOWN), answers[list(CHOICES).index(words)]
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
