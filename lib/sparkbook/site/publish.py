"""From executed notebooks to the published site."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from sparkbook.errors import SparkbookError
from sparkbook.runner import fingerprint
from sparkbook.runner.pages import Page
from sparkbook.runner.project import Project
from sparkbook.runner.run_pages import Outcome
from sparkbook.site import record, vendor
from sparkbook.site.assemble import assemble, swap
from sparkbook.site.linkcheck import check

_TIMEOUT_S = 900
_JUPYTER_BOOK = (
    "import functools, jupyter_book.sphinx as book; "
    f"book.build_sphinx = functools.partial(book.build_sphinx, jobs={os.cpu_count() or 1}); "
    "from jupyter_book.cli.main import main; main()"
)
"""jupyter-book's own command has no option for Sphinx's `-j`."""

_WARNING = re.compile(r"^.*(?:WARNING|ERROR|CRITICAL|SEVERE): .*")


def publish(
    project: Project, pages: list[Page], outcome: Outcome, say: Callable[[str], None]
) -> None:
    """Bring `_build/html` up to date: assemble, build afresh, check, and put it in the place of the
    old one.

    A site with warnings or broken links is published all the same, so that it can be viewed, but
    counts as a problem, and is built again next time.

    Raises:
        SparkbookError: Sphinx ended without a site; the old one is left as it is.
    """
    vendor.ensure(project)
    assemble(project, pages)
    stamp = project.build / "site-made-from"
    wanted = site_fingerprint(project)
    if project.html.is_dir() and stamp.is_file() and stamp.read_text("utf-8") == wanted:
        say("site: unchanged")
        outcome.site = project.html
        return
    stamp.unlink(missing_ok=True)
    say("site: building …")
    fresh, problems = sphinx(project)
    problems += check(fresh)
    problems += record.unreported(project, pages)
    swap(fresh, project.html)
    outcome.problems += problems
    outcome.site = project.html
    if not problems and not outcome.failures:
        stamp.write_text(wanted, "utf-8")
    say(f"site: {sum(1 for _ in project.html.rglob('*.html'))} pages, {len(problems)} problems")


def site_fingerprint(project: Project) -> str:
    """Return a hash of everything that the pages are made from: the assembled tree, other projects'
    scripts, and the versions of the Sphinx packages.
    """
    pins = (
        (project.root / "requirements.txt").read_text("utf-8")
        if (project.root / "requirements.txt").exists()
        else ""
    )
    return "\n".join(
        [fingerprint.tree(project.source_tree), vendor.fingerprint(project), fingerprint.text(pins)]
    )


def sphinx(project: Project) -> tuple[Path, list[str]]:
    """Build the site from nothing, by jupyter-book; every warning is a problem.

    Always afresh: Sphinx warns only about pages that it reads again, so a second build would pass
        where the first one failed.

    Returns:
        The folder with the new site, and the warnings.

    Raises:
        SparkbookError: it ended without a site.
    """
    work = project.build / "site.new"
    shutil.rmtree(work, ignore_errors=True)
    command = [
        sys.executable,
        "-c",
        _JUPYTER_BOOK,
        "build",
        str(project.source_tree),
        "--path-output",
        str(work),
    ]
    command += ["-W", "-n", "--keep-going", "--all", "-q"]
    done = _run(command, project)
    html = work / "_build" / "html"
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr + done.stdout)
    (project.build / "site.log").write_text(text, "utf-8")
    # jupyter-book writes the start page's forward only when there was no warning.
    if (html / "genindex.html").is_file() and not (html / "index.html").is_file():
        root = yaml.safe_load((project.source_tree / "_toc.yml").read_text("utf-8"))["root"]
        (html / "index.html").write_text(
            f'<meta http-equiv="Refresh" content="0; url={root}.html" />\n', "utf-8"
        )
    warnings = [
        match[0].replace(f"{project.source_tree}{os.sep}", "")
        for match in map(_WARNING.search, text.splitlines())
        if match
    ]
    if not (html / "genindex.html").is_file():
        raise SparkbookError(
            "Sphinx ended without a site:\n" + "\n".join(text.strip().splitlines()[-12:])
        )
    if done.returncode and not warnings:
        warnings = [
            f"jupyter-book ended with exit code {done.returncode}; its output is in _build/site.log"
        ]
    return html, list(dict.fromkeys(warnings))


def _run(command: list[str], project: Project) -> subprocess.CompletedProcess[str]:
    """Run Sphinx; it ends with this process, also on Ctrl-C."""
    env = {**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"}
    process = subprocess.Popen(
        command,
        cwd=project.build,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise SparkbookError(f"Sphinx did not finish in {_TIMEOUT_S} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
