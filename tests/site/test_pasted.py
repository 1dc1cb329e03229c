"""The page that takes whatever an owner has: it recognizes what it is, answers what the command
answers, and sends nothing anywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chromium import Tab, served
from in_browser import (
    ANSWER,
    ANSWERED,
    ROOT,
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
from sparkbook import formats, recipes
from sparkbook.errors import SparkbookError
from sparkbook.site import pasted

DATA = ROOT / "tests/data"
LOGS = sorted((DATA / "logs").glob("*.log"))
STARTS = {
    "docker.sh": "docker",
    "compose.yaml": "compose",
    "serve.sh": "shell",
    "recipe.yaml": "recipe",
    "eugr.yaml": "eugr",
    "sparkrun.yaml": "sparkrun",
    "spark-pulse.yaml": "spark-pulse",
    "nvidia-v4.yaml": "nvidia",
    "vllm-recipe.yaml": "vllm-recipes",
    "vllm-hardware.json": "vllm-recipes-json",
    "kubernetes.yaml": "kubernetes",
}
"""File of each format, and the format's name."""
LINES = [
    *(one["line"] for one in yaml.safe_load((DATA / "logs/unseen.yaml").read_text("utf-8"))),
    "RuntimeError: a fault that nobody knows",
    "ValueError: Unknown quantization method: fp3. Must be one of ['awq', 'fp8'].",
]
"""Single lines of errors."""
NEITHER = ["What is the weather in Paris today?", "x", "{}", "a: b", "\0\0\0", "é" * 40_000]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files with one line of an error, and files with something that is neither log nor start."""
    folder = tmp_path_factory.mktemp("given")
    texts = {f"line{i}.txt": text for i, text in enumerate(LINES)}
    texts |= {f"neither{i}.txt": text for i, text in enumerate(NEITHER)}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return {name: folder / name for name in texts}


def recognized(file: Path, monkeypatch: pytest.MonkeyPatch) -> pasted.Recognized:
    """What the page takes a file for."""
    monkeypatch.chdir(file.parent)
    return pasted.recognize([file.name])


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_log_is_a_log(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recognized(log, monkeypatch).lines == [f"sparkbook diagnose {log.name}"]


@pytest.mark.parametrize("line", range(len(LINES)))
def test_one_line_of_an_error_is_enough(
    line: int, named: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"line{line}.txt"
    assert recognized(named[name], monkeypatch).lines == [f"sparkbook diagnose {name}"]


@pytest.mark.parametrize("name", STARTS)
def test_a_start_in_any_format_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recognized(DATA / "formats" / name, monkeypatch)
    assert found.lines == [f"sparkbook lint {name}", f"sparkbook plan {name}"]
    assert found.starts[0][1] == formats.FORMATS[STARTS[name]].title


@pytest.mark.slow
@pytest.mark.parametrize("format_", formats.FORMATS)
def test_no_recipe_of_the_catalogue_is_taken_for_a_log(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(recipes.ids()):
        try:
            text = formats.write(recipes.load(name), format_).text
        except SparkbookError:
            continue  # a format that can't say what the recipe asks for
        file = tmp_path / f"{number}.txt"
        file.write_text(text, "utf-8")
        assert recognized(file, monkeypatch).starts, (name, text)


@pytest.mark.parametrize("number", range(len(NEITHER)))
def test_what_is_neither_is_said_to_be_unknown(
    number: int, named: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recognized(named[f"neither{number}.txt"], monkeypatch)
    assert found.lines == []
    assert pasted.said(found, []) == [pasted.UNKNOWN]


def test_several_logs_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "rank0.log": "(Worker_TP0 pid=2) ERROR 11-28 14:52:40 [core.py:1] ncclRemoteError: x",
        "notes.txt": "what I did: nothing",
        "start.sh": "vllm serve openai/gpt-oss-20b",
    }
    monkeypatch.chdir(tmp_path)
    for name, text in texts.items():
        Path(name).write_text(text, "utf-8")
    assert pasted.recognize(list(texts)).lines == [
        "sparkbook diagnose rank0.log notes.txt",
        "sparkbook lint start.sh",
        "sparkbook plan start.sh",
    ]


def questions(named: dict[str, Path]) -> tuple[tuple[str, ...], ...]:
    """Everything that is pasted in these tests, and two logs of one run."""
    nodes = [log for log in LOGS if "two-nodes-iface" in log.stem]
    files = [*LOGS, *(DATA / "formats" / name for name in STARTS), *named.values()]
    return (*((str(file),) for file in files), tuple(map(str, nodes)))


@pytest.mark.slow
def test_the_answer_is_the_commands(named: dict[str, Path]) -> None:
    file = DATA / "logs/h100-0.24.0-kv-small.log"
    ((found,), _) = said_here(((str(file),),))
    assert found["what"] == ["Recognized: a log of vLLM 0.24.0, 147 lines."]
    (answer,) = found["answers"]
    for more in ([], ["--json"]):
        words = [sys.executable, "-c", "from sparkbook import cli; cli.main()", "diagnose"]
        done = subprocess.run(
            [*words, file.name, *more], capture_output=True, text=True, check=False, cwd=file.parent
        )
        assert answer["exit"] == done.returncode
        if more:
            assert answer["told"] == json.loads(done.stdout)
        else:
            assert answer["text"] == done.stdout.rstrip()


@pytest.mark.slow
def test_whatever_the_command_opens_is_packed(named: dict[str, Path]) -> None:
    """It follows the command: a module or a data file that a diagnosis begins to need, and the
    archives lack, fails here.
    """
    _, files = said_here(questions(named))
    missing = needed(files) - archived("library", "doctor")
    assert missing == set(), "packed.DOCTOR has to name them"
    assert "sparkbook/logs/sentences.bin" in needed(files)


# ---- with Python in WebAssembly


@pytest.fixture(scope="module")
def mini_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one page that holds nothing but the field, with everything that it loads."""
    root = tmp_path_factory.mktemp("site")
    sizes = make_site(root)
    write_page(root, "paste", pasted.block(sizes.doctor), "paste.js")
    return root


@pytest.mark.site
def test_it_is_the_same_answer_to_everything(
    mini_site: Path, tmp_path: Path, named: dict[str, Path]
) -> None:
    """Recordings, single lines, starts in every format and what is neither: Pyodide in node says
    what this Python says, similar reports and sentences included.
    """
    given = questions(named)
    told = said_in_node(mini_site, tmp_path, list(given), "library", "doctor")
    wanted, _ = said_here(given)
    assert told == wanted
    rules = {
        finding["rule"]
        for one in told
        for answer in one["answers"]
        if answer["told"]
        for finding in answer["told"]["findings"]
    }
    assert {"LOG108", "LOG900", "LOG908"} <= rules


@pytest.fixture(scope="module")
def address(mini_site: Path) -> Iterator[str]:
    with served(mini_site) as there:
        yield f"{there}/notebooks/paste.html"


TYPE = """((text) => {
  const field = document.getElementById('sb-paste-text');
  field.value = text;
  field.dispatchEvent(new Event('input', { bubbles: true }));
})(%s)"""
SUBMIT = "document.querySelector('.sb-planner-form').requestSubmit()"
DROP = """((files) => {
  const given = new DataTransfer();
  for (const [name, text, times] of files) given.items.add(new File(Array(times).fill(text), name));
  document.querySelector('.sb-planner-form').dispatchEvent(
    new DragEvent('drop', { dataTransfer: given, bubbles: true, cancelable: true }));
})(%s)"""
SHOWN = """({
  what: [...document.querySelectorAll('.sb-paste-what')].map((one) => one.textContent),
  texts: [...document.querySelectorAll('.sb-planner-answer pre')].map((one) => one.textContent),
  findings: [...document.querySelectorAll('.sb-planner-answer .finding')].map((one) => {
    const link = one.querySelector('a');
    return [one.querySelector('strong').textContent, link.textContent, new URL(link.href).pathname + new URL(link.href).hash];
  }),
  reports: [...document.querySelectorAll('.sb-planner-answer .finding a[href^="https:"]')].map((one) => one.href),
})"""


def same(shown: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare what a page shows with what the command says."""
    assert shown["what"] == wanted["what"]
    assert shown["texts"] == [answer["text"] for answer in wanted["answers"]]
    findings = [one for answer in wanted["answers"] for one in answer["told"]["findings"]]
    assert shown["findings"] == [
        [one["severity"], one["rule"], f"/{one['why']}"] for one in findings
    ]
    sources = {one["source"] for one in findings if one["rule"] == "LOG908"}
    assert sources <= set(shown["reports"])


@pytest.mark.browser
class TestPage:
    """In Chromium."""

    def test_nothing_is_sent_and_nothing_is_loaded_from_elsewhere(
        self, tab: Tab, address: str
    ) -> None:
        """After the page itself only the site's own files come, each asked for by its bare name;
        once Python is there, answers ask for nothing at all.
        """
        tab.open(address, 1000, "light")
        site = address.removesuffix("notebooks/paste.html")
        assert {url.removeprefix(f"{site}_static/") for url in asked(tab)[1:]} == {
            "sparkbook.css",
            "page.js",
            "paste.js",
        }
        secret = "hf_thisIsNobodysToken"
        line = f"OSError: [Errno 98] Address already in use {secret}"
        tab.evaluate(TYPE % json.dumps(line))
        loaded = loaded_from(tab, SUBMIT)
        assert {url.removeprefix(f"{site}_static/") for url in loaded} == {
            "page-worker.mjs?library,doctor",
            "page-python.mjs",
            *(
                f"planner/{name}"
                for name in (
                    "pyodide.mjs",
                    "pyodide.asm.mjs",
                    "pyodide.asm.wasm",
                    "pyodide-lock.json",
                    "python_stdlib.zip",
                    "library.zip",
                    "doctor.zip",
                )
            ),
        }
        assert "Address already in use" in tab.evaluate(ANSWER)
        sent = [
            event["params"]["request"]
            for event in tab.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        assert {request["method"] for request in sent} == {"GET"}
        assert secret not in json.dumps(sent)
        tab.evaluate(TYPE % json.dumps("RuntimeError: a fault that nobody knows"))
        before = len(asked(tab))
        tab.evaluate(SUBMIT)
        until(tab, ANSWERED)
        assert asked(tab)[before:] == []
        assert tab.complaints() == []

    @pytest.mark.parametrize("number", [0, 12, 30])
    def test_a_line_that_is_pasted(self, tab: Tab, number: int, tmp_path: Path) -> None:
        (tmp_path / "pasted.txt").write_text(LINES[number], "utf-8")
        tab.evaluate(TYPE % json.dumps(LINES[number]))
        tab.evaluate(SUBMIT)
        until(tab, ANSWERED)
        same(tab.evaluate(SHOWN), said_here(((str(tmp_path / "pasted.txt"),),))[0][0])
        assert tab.evaluate("document.activeElement.className") == "sb-planner-answer"

    @pytest.mark.parametrize(
        "files",
        [
            ["logs/h100-0.24.0-kv-small.log"],
            ["formats/docker.sh"],
            ["logs/h200-0.24.0-two-nodes-iface-n0.log", "logs/h200-0.24.0-two-nodes-iface-n1.log"],
        ],
        ids=lambda files: files[0],
    )
    def test_files_that_are_dropped(self, tab: Tab, files: list[str]) -> None:
        texts = [(Path(name).name, (DATA / name).read_text("utf-8"), 1) for name in files]
        tab.evaluate(DROP % json.dumps(texts))
        tab.evaluate(SUBMIT)
        until(tab, ANSWERED)
        same(tab.evaluate(SHOWN), said_here((tuple(str(DATA / name) for name in files),))[0][0])

    def test_a_long_log_leaves_the_page_alive(self, tab: Tab) -> None:
        """50 MB: the page counts frames while its thread reads, and the log is read to its end."""
        line = '(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        times = 50_000_000 // len(line)
        tab.evaluate(
            """window.frames_ = 0; (function count() { frames_ += 1; setTimeout(count, 10); })();"""
        )
        tab.evaluate(DROP % json.dumps([["long.log", line, times]]))
        before = tab.evaluate(f"{SUBMIT}; frames_")
        until(tab, ANSWERED, 240)
        assert tab.evaluate("frames_") > before + 10
        assert f"{times:,} lines" in tab.evaluate(ANSWER)

    def test_what_is_unknown_is_said_plainly(self, tab: Tab, address: str) -> None:
        tab.evaluate("document.querySelector('.sb-planner-form button[type=button]').click()")
        tab.evaluate(TYPE % json.dumps(NEITHER[0]))
        tab.evaluate(SUBMIT)
        until(tab, ANSWERED)
        assert tab.evaluate(ANSWER) == pasted.UNKNOWN

    def test_nothing_is_asked_for(self, tab: Tab) -> None:
        tab.evaluate(TYPE % '" "')
        tab.evaluate(SUBMIT)
        assert "Paste something first" in tab.evaluate(ANSWER)
