"""What the tests of pages that run the command share: the same questions in this Python, and a site of
one page that has everything it loads.
"""

from __future__ import annotations

import functools
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

from chromium import Tab
from sparkbook.runner.project import here
from sparkbook.site import packed, vendor

ROOT = Path(__file__).resolve().parents[2]

HERE = """
import json, os, pathlib, shutil, sys, tempfile
before, opened = set(sys.modules), set()
sys.addaudithook(lambda event, given: opened.add(str(given[0])) if event == "open" else None)
from sparkbook.site.in_page import Command
from sparkbook import cli
from sparkbook.cli import output
command = Command(cli.main, output.listeners)
def ask(question):
    if isinstance(question, str):
        return command.answer(question)
    with tempfile.TemporaryDirectory() as folder:
        for name in question:
            shutil.copy(name, folder)
        os.chdir(folder)
        try:
            return command.given([pathlib.Path(name).name for name in question])
        finally:
            os.chdir("/")
answers = [json.loads(ask(question)) for question in json.load(sys.stdin)]
modules = {str(module.__file__) for name, module in list(sys.modules.items()) if name not in before and getattr(module, "__file__", None)}
json.dump([answers, sorted(modules | {name for name in opened if name.endswith((".json", ".yaml", ".bin"))})], sys.stdout)
"""


@functools.cache
def said_here(
    questions: tuple[str | tuple[str, ...], ...],
) -> tuple[list[dict[str, Any]], list[str]]:
    """What this Python answers to command lines and lists of files, in a process of its own, and
    every file that took: modules, and data that was read.
    """
    done = subprocess.run(
        [sys.executable, "-c", HERE],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, files = json.loads(done.stdout)
    return answers, files


def said_in_node(
    site: Path, folder: Path, questions: list[Any], *archives: str
) -> list[dict[str, Any]]:
    """What Pyodide answers in node, with these archives of a site."""
    (folder / "questions.json").write_text(json.dumps(questions), "utf-8")
    places = [site / "_static/planner", folder / "questions.json", folder / "said.json"]
    command = [vendor.node(), Path(__file__).with_name("page.mjs"), *places, *archives]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "said.json").read_text("utf-8"))["answers"]


def needed(files: list[str]) -> set[str]:
    """Those of this library and of the installed ones that an archive has to hold, as it names
    them.
    """
    installed = next(path for path in sys.path if path.endswith("site-packages"))
    return {
        name.removeprefix(f"{folder}/")
        for folder in (str(ROOT / "lib"), installed)
        for name in files
        if name.startswith(f"{folder}/") and not name.endswith(".so")
    }


def make_site(root: Path) -> packed.Sizes:
    """Write everything that a page loads into a folder, and give what a first run loads."""
    project = here()
    vendor.ensure(project)
    shutil.copytree(ROOT / "book/_static", root / "_static")
    shutil.copytree(project.vendor / "site" / "planner", root / "_static" / "planner")
    (root / "notebooks").mkdir()
    return packed.write(project, root / "_static" / "planner")


def write_page(root: Path, name: str, block: str, script: str) -> None:
    """Write a page that holds nothing but a form of one of the scripts."""
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><link'
        ' rel="icon" href="data:,">'
    )
    style = '<link rel="stylesheet" href="../_static/sparkbook.css">'
    scripts = "".join(
        f'<script defer src="../_static/{file}"></script>' for file in ("page.js", script)
    )
    page = f"{head}{style}<main><h1>{name}</h1>{block}</main>{scripts}"
    (root / "notebooks" / f"{name}.html").write_text(page, "utf-8")


def until(tab: Tab, true: str, seconds: float = 60) -> None:
    """Wait until an expression is true in the page."""
    deadline = time.monotonic() + seconds
    while not tab.evaluate(f"!!({true})"):
        assert time.monotonic() < deadline, (
            f"not within {seconds} s: {true}; shown is {tab.evaluate(ANSWER)!r}"
        )
        time.sleep(0.05)


def loaded_from(tab: Tab, start: str) -> list[str]:
    """Click the button, wait for the answer, and give every address that the page and its thread
    asked for meanwhile.
    """
    before = len(asked(tab))
    tab.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
    tab.evaluate(start)
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
    tab.call("Target.setAutoAttach", autoAttach=False, waitForDebuggerOnStart=False, flatten=True)
    return asked(tab)[before:]


def asked(tab: Tab) -> list[str]:
    """The addresses that the page asked for, without those that it holds itself."""
    return [url for url in tab.asked_for() if not url.startswith("data:")]


ANSWER = "document.querySelector('.sb-planner-answer').textContent"
RUN = "document.querySelector('.sb-planner-run')"
ANSWERED = f"!{RUN}.disabled && {ANSWER}"


@functools.cache
def archived(*names: str) -> set[str]:
    """The files in some of the archives, with something in the place of what is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "core.so").write_bytes(b"\0asm")
        archives = packed.pack(Path(folder))
        assert archives == packed.pack(Path(folder)), "the same files give the same archives"
    files = [zipfile.ZipFile(io.BytesIO(archives[name])).namelist() for name in names]
    assert len(set(chain(*files))) == sum(map(len, files)), "no file is in two of them"
    return set(chain(*files))
