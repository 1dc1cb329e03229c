"""From executed notebooks to the published site."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sparkbook.errors import SparkbookError
from sparkbook.register import claims
from sparkbook.runner import fingerprint
from sparkbook.runner.pages import Page, as_published
from sparkbook.runner.project import Project
from sparkbook.site import record, rule_pages, vendor

if TYPE_CHECKING:
    from sparkbook.site.build import Outcome
    from sparkbook.site.links import Linker

OVERVIEW = "07_models"
"""The chapter under which the recipes' pages stand."""

_COPIED = ("_config.yml", "conf.py")
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

    A site with warnings or broken links is published all the same, so that it can be looked at, but
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
    from sparkbook.site.linkcheck import check

    problems += check(fresh)
    problems += record.unreported(project, pages)
    swap(fresh, project.html)
    outcome.problems += problems
    outcome.site = project.html
    if not problems and not outcome.failures:
        stamp.write_text(wanted, "utf-8")
    say(f"site: {sum(1 for _ in project.html.rglob('*.html'))} pages, {len(problems)} problems")


def site_fingerprint(project: Project) -> str:
    """Of everything that the pages are made from: the assembled tree, other projects' scripts, and
    the versions of Sphinx and its kin.
    """
    pins = (
        (project.root / "requirements.txt").read_text("utf-8")
        if (project.root / "requirements.txt").exists()
        else ""
    )
    return "\n".join(
        [fingerprint.tree(project.source_tree), vendor.fingerprint(project), fingerprint.text(pins)]
    )


def assemble(project: Project, pages: list[Page]) -> None:
    """Write `_build/book`, the folder that Sphinx reads. Beside it the old one is gone only when
    the new one is complete.
    """
    from sparkbook import recipes
    from sparkbook.site import chooser, flags, links, planner, search

    fresh = project.source_tree.with_name("book.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in _COPIED:
        shutil.copyfile(project.root / name, fresh / name)
    shutil.copytree(
        project.root / "book", fresh / "book", ignore=shutil.ignore_patterns(".*", "__pycache__")
    )
    (fresh / "_vendor").symlink_to("../vendor/site")
    models = {page.values["recipe_id"]: page.out.stem for page in pages if page.title is not None}
    known = flags.flags(models)
    linker = links.Linker(links.addresses(known, models))
    for chapter in sorted((project.root / "notebooks").glob("[!.]*.md")):
        (fresh / "notebooks").mkdir(exist_ok=True)
        shutil.copyfile(chapter, fresh / "notebooks" / chapter.name)
    for prose in sorted(fresh.rglob("*.md")):
        at = prose.relative_to(fresh).with_suffix(".html").as_posix()
        prose.write_text(linker.markdown(prose.read_text("utf-8"), at), "utf-8")
    (fresh / "book" / "_chooser.md").write_text(chooser.page(chooser.data(models)), "utf-8")
    (fresh / "book" / "_static").mkdir(exist_ok=True)
    (fresh / "book" / "_static" / "signatures.js").write_text(search.script(known, models), "utf-8")
    loaded = planner.write(project, fresh / "book" / "_static" / "planner")
    texts = []
    for page in pages:
        folder = fresh / ("notebooks" if page.title is None else "models")
        folder.mkdir(exist_ok=True)
        notebook = as_published(page, register=(project.root / claims.FOLDER).is_dir())
        if page.title is None:
            texts.append((f"notebooks/{page.out.stem}", *_title_and_text(notebook)))
        notebook["cells"].insert(1, _prose("run-it", run_line(page)))
        if page.title is not None and (
            named := flags.of_recipe(recipes.load(page.values["recipe_id"]), known)
        ):
            sources = [cell["source"] for cell in notebook["cells"]]
            after_the_line = next(
                (i for i, source in enumerate(sources) if source.startswith("## What to know")),
                len(sources),
            )
            notebook["cells"].insert(after_the_line, _prose("named", named))
        linker.notebook(notebook, f"{folder.name}/{page.out.stem}.html")
        planner.place(
            notebook,
            models,
            loaded,
            page.values.get("recipe_id") if page.title is not None else None,
        )
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
        (folder / page.out.name).write_text(text + "\n", "utf-8")
    made = record.Made(project.build / "generated.json")
    sections = list(_write_pages(fresh / "flags", flags.pages(known, texts), linker, made))
    judged = list(rule_pages.rule_pages(known, models, texts))
    names = list(
        _write_pages(fresh / "rules", [("index", rule_pages.index(judged)), *judged], linker, made)
    )
    made.save()
    toc = with_models(project.toc(), [page for page in pages if page.title is not None])
    looked_up = [
        {"file": f"{folder}/{first}", "sections": [{"file": f"{folder}/{name}"} for name in rest]}
        for folder, (first, *rest) in (("flags", sections), ("rules", names))
    ]
    toc.setdefault("parts", []).append({"caption": "Look up", "chapters": looked_up})
    record.write(project, fresh, toc, linker)
    (fresh / "_toc.yml").write_text(
        yaml.safe_dump(toc, sort_keys=False, allow_unicode=True), "utf-8"
    )
    swap(fresh, project.source_tree)


def _write_pages(
    folder: Path, written: Iterable[tuple[str, str]], linker: Linker, made: record.Made
) -> Iterator[str]:
    """Write generated pages with their links and the day on which they came out so; gives their
    names.
    """
    folder.mkdir()
    for name, markdown in written:
        linked = linker.markdown(markdown, f"{folder.name}/{name}.html")
        (folder / f"{name}.md").write_text(made.put(f"{folder.name}/{name}", linked), "utf-8")
        yield name


def _prose(name: str, text: str) -> dict[str, Any]:
    """A cell of text, to put into a notebook."""
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


def run_line(page: Page) -> str:
    """How a reader runs the page on a Spark, and the notebook to take along."""
    from sparkbook.runner import notebooks

    values = " ".join(
        f"-p {name} {value}" for name, value in page.values.items() if name != "target"
    )
    known = notebooks.parameters(page.source)
    attach = page.engine == "attach" and "target" in known
    line = (
        f".venv/bin/papermill notebooks/{page.source.name} out.ipynb --cwd notebooks"
        f" {values}{' -p target attach' * attach}".rstrip()
    )
    before = "SPARKBOOK_ENDPOINT=http://127.0.0.1:8000 " * (page.engine == "attach")
    text = (
        f"in a checkout of the book, `make lab` and open `notebooks/{page.source.name}`; or without"
        " a browser:"
    )
    taken = f"{{download}}`The notebook as it was run here <{page.out.name}>`; or, {text}"
    return (
        ":::{dropdown} Run this on your Spark\n:class-container:"
        f" sb-run\n\n{taken}\n\n```bash\n{before}{line}\n```\n:::"
    )


def _title_and_text(notebook: dict[str, Any]) -> tuple[str, str]:
    """A chapter's heading, and everything that its author wrote."""
    text = "\n".join(cell["source"] for cell in notebook["cells"])
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return (heading[1].replace("`", "") if heading else "Untitled"), text


def with_models(toc: dict[str, Any], models: list[Page]) -> dict[str, Any]:
    """The committed table of contents with the recipes' pages under the overview chapter.

    Raises:
        SparkbookError: there are such pages, and no chapter `07_models` to put them under.
    """
    entries = [{"file": f"models/{page.out.stem}"} for page in models]
    for part in toc.get("parts", []):
        for chapter in part["chapters"]:
            if Path(chapter.get("file", "")).name == OVERVIEW and entries:
                chapter["sections"] = entries
                return toc
    if entries:
        raise SparkbookError(
            f"_toc.yml names no notebooks/{OVERVIEW}, under which the recipes' pages would stand:"
            " add it"
        )
    return toc


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
            f"jupyter-book ended with exit code {done.returncode}; its words are in _build/site.log"
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


def swap(fresh: Path, place: Path) -> None:
    """Put a finished folder in the place of an old one, by renaming: at no time is there half of
    it.
    """
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)
