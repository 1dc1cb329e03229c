"""The folder that Sphinx reads: prose, executed notebooks, generated pages, table of contents."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.recipes import Recipe
from sparkbook.recipes.names import model_of
from sparkbook.register import claims
from sparkbook.runner import notebooks
from sparkbook.runner.pages import Page
from sparkbook.runner.project import Project
from sparkbook.site import (
    badges,
    chooser,
    combinations,
    flags,
    links,
    model_pages,
    packed,
    pasted,
    planner,
    questions,
    recommended,
    record,
    rule_pages,
    search,
)
from sparkbook.site.flags import Flag
from sparkbook.site.links import Linker
from sparkbook.site.notebook_page import as_published

OVERVIEW = "07_models"
"""The chapter under which the models' pages are listed."""

_COPIED = ("_config.yml", "conf.py")
_GENERATED = shutil.ignore_patterns(".*", "__pycache__", "data")


def assemble(project: Project, pages: list[Page]) -> None:
    """Write `_build/book`, the folder that Sphinx reads. The old one stays until the new one is
    complete.
    """
    fresh = project.source_tree.with_name("book.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    models = {page.values["recipe_id"]: page.out.stem for page in pages if page.title is not None}
    known = flags.flags(models)
    linker = Linker(links.addresses(known, models))
    static = fresh / "book" / "_static"
    sizes = packed.write(project, static / "planner")
    _write_prose(project, fresh, linker, pasted.block(sizes.doctor))
    (fresh / "book" / "_chooser.md").write_text(chooser.page(chooser.data(models)), "utf-8")
    asked = linker.markdown(questions.page(), "book/questions.html")
    (fresh / "book" / "_questions.md").write_text(asked, "utf-8")
    register = (project.root / claims.FOLDER).is_dir()
    chapters = []
    parts: dict[str, dict[str, Any]] = {}
    for page in pages:
        notebook = as_published(page, register=register)
        if page.title is None:
            notebook["cells"].insert(1, _prose("run-it", run_line(page)))
            chapters.append((f"notebooks/{page.out.stem}", *_title_and_text(notebook)))
            planner.place(notebook, models, sizes.planner, None)
            _write_notebook(notebook, f"notebooks/{page.out.stem}", fresh, linker)
        else:
            recipe = page.values["recipe_id"]
            _complete(notebook, page, known)
            planner.place(notebook, models, sizes.planner, recipe)
            parts[recipe] = notebook
    found = model_pages.by_page(models)
    for name, of_page in found.items():
        _write_notebook(model_pages.merged(of_page, parts), f"models/{name}", fresh, linker)
    toc = with_models(
        project.toc(), sorted(found, key=lambda name: recommended.order(found[name][0]))
    )
    look_up = _write_look_up(project, fresh, linker, (known, models, chapters))
    toc.setdefault("parts", []).append({"caption": "Look up", "chapters": look_up})
    record.write(project, fresh, toc, linker)
    _lead_to_sections(fresh, found)
    (static / "signatures.js").write_text(
        search.script(known, models, search.headings(fresh)), "utf-8"
    )
    text = yaml.safe_dump(toc, sort_keys=False, allow_unicode=True)
    (fresh / "_toc.yml").write_text(text, "utf-8")
    swap(fresh, project.source_tree)


def _lead_to_sections(fresh: Path, found: Mapping[str, Sequence[Recipe]]) -> None:
    """Lead links to recipes to their sections, and keep the addresses that they had before."""
    slugs = {recipe.slug: name for name, of_page in found.items() for recipe in of_page}
    for path in (*fresh.rglob("*.md"), *fresh.rglob("*.ipynb")):
        text = path.read_text("utf-8")
        if (changed := model_pages.direct(text, slugs)) != text:
            path.write_text(changed, "utf-8")
    old = fresh / "_redirects" / "models"
    old.mkdir(parents=True)
    for name, page in model_pages.redirects(found).items():
        (old / f"{name}.html").write_text(page, "utf-8")


def _write_prose(project: Project, fresh: Path, linker: Linker, field: str) -> None:
    """Copy what is written by hand, with links in the prose, and the field to paste into."""
    for name in _COPIED:
        shutil.copyfile(project.root / name, fresh / name)
    shutil.copytree(project.root / "book", fresh / "book", ignore=_GENERATED, dirs_exist_ok=True)
    (fresh / "_vendor").symlink_to("../vendor/site")
    for chapter in sorted((project.root / "notebooks").glob("[!.]*.md")):
        (fresh / "notebooks").mkdir(exist_ok=True)
        shutil.copyfile(chapter, fresh / "notebooks" / chapter.name)
    for prose in sorted(fresh.rglob("*.md")):
        address = prose.relative_to(fresh).with_suffix(".html").as_posix()
        text = linker.markdown(prose.read_text("utf-8"), address)
        prose.write_text(text.replace(pasted.MARK, field), "utf-8")


def _complete(notebook: dict[str, Any], page: Page, known: dict[str, Flag]) -> None:
    """Put into a recipe's notebook its flags and rules, and how to run it."""
    named = flags.of_recipe(recipes.load(page.values["recipe_id"]), known)
    if named:
        sources = [cell["source"] for cell in notebook["cells"]]
        headings = (i for i, text in enumerate(sources) if text.startswith("## What to know"))
        notebook["cells"].insert(next(headings, len(sources)), _prose("named", named))
    notebook["cells"].append(_prose("run-it", run_line(page)))


def _write_notebook(notebook: dict[str, Any], name: str, fresh: Path, linker: Linker) -> None:
    """Write the notebook of the page `name` (without ending) with its links."""
    path = fresh / f"{name}.ipynb"
    path.parent.mkdir(exist_ok=True)
    linker.notebook(notebook, f"{name}.html")
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", "utf-8")


def _write_look_up(
    project: Project,
    fresh: Path,
    linker: Linker,
    content: tuple[dict[str, Flag], Mapping[str, str], list[tuple[str, str, str]]],
) -> list[dict[str, Any]]:
    """Write the pages of flags and rules; return their entries in the table of contents."""
    known, models, chapters = content
    made = badges.Made(project.build / "generated.json")
    rules = list(rule_pages.rule_pages(known, models, chapters))
    rules.insert(0, ("index", rule_pages.index(rules)))
    rules.insert(1, (combinations.PAGE, combinations.page()))
    entries: list[dict[str, Any]] = []
    for folder, written in (("flags", flags.pages(known, chapters)), ("rules", rules)):
        first, *rest = _write_pages(fresh / folder, written, linker, made)
        sections = [{"file": f"{folder}/{name}"} for name in rest]
        entries.append({"file": f"{folder}/{first}", "sections": sections})
    made.save()
    return entries


def _write_pages(
    folder: Path, written: Iterable[tuple[str, str]], linker: Linker, made: badges.Made
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
    """Return a cell of text, to put into a notebook."""
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}


def run_line(page: Page) -> str:
    """Return how a reader runs the page on a Spark, and the notebook to take along."""
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
        f"in a checkout of the book, run `make lab` and open `notebooks/{page.source.name}`; or"
        " without a browser:"
    )
    recipe = page.values.get("recipe_id") if page.title is not None else None
    name = f"{model_of(recipe)}.ipynb" if recipe else page.out.name
    taken = f"{{download}}`The executed notebook <{name}>`; or, {text}"
    return (
        ":::{dropdown} Run this on your Spark\n:class-container:"
        f" sb-run\n\n{taken}\n\n```bash\n{before}{line}\n```\n:::"
    )


def _title_and_text(notebook: dict[str, Any]) -> tuple[str, str]:
    """Return a chapter's heading, and everything that its author wrote."""
    text = "\n".join(cell["source"] for cell in notebook["cells"])
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return (heading[1].replace("`", "") if heading else "Untitled"), text


def with_models(toc: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the committed table of contents with the models' pages under the overview chapter.

    Raises:
        SparkbookError: there are such pages, and no chapter `07_models` to put them under.
    """
    entries = [{"file": f"models/{name}"} for name in names]
    for part in toc.get("parts", []):
        for chapter in part["chapters"]:
            if Path(chapter.get("file", "")).name == OVERVIEW and entries:
                chapter["sections"] = entries
                return toc
    if entries:
        raise SparkbookError(
            f"_toc.yml names no notebooks/{OVERVIEW}, under which the models' pages are"
            " listed: add it"
        )
    return toc


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
