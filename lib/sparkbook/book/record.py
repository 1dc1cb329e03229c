"""What the site says about itself: the badges of a page, and the pages on claims, sources, changes
and coverage.

All of it is made when the site is assembled, out of the register, the facts and the executed
notebooks; nothing of it is typed.
"""

from __future__ import annotations

import datetime
import functools
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkbook.book import claims, fingerprint, notebooks
from sparkbook.checks import marked
from sparkbook.util.shell_text import command_line

if TYPE_CHECKING:
    from pathlib import Path

    from sparkbook.book.links import Linker
    from sparkbook.book.pages import Page
    from sparkbook.book.project import Project

SINCE = "2026-06-20"
"""The day of the guide: what `What changed` counts from."""

MADE = "@made@"
"""In a generated page's badges: the day on which it came out as it is."""

MOST = 12
"""Names of one kind that are shown for a source before the rest is folded."""

_ADDRESS = re.compile(r"https://[^\s)\]>\"']+[^\s)\]>\"'.,;:]")
_NAMED = re.compile(r"\[([^\]]+)\]\((https://[^)]+)\)")
_FINDING = re.compile(r'class="finding finding-(error|warning|info)"')


def generated(project: Project) -> Iterator[tuple[str, str]]:
    """Name and Markdown of each page; none for a book without a register."""
    if not (project.root / claims.FOLDER).is_dir():
        return
    from sparkbook.book import coverage

    yield "claims", claims.register_page()
    yield "changes", changes_page()
    if (project.root / coverage.FILE).is_file():
        yield "coverage", coverage.page(project)
    yield "sources", sources_page(project)


def write(project: Project, folder: Path, toc: dict[str, Any], linker: Linker) -> None:
    """Put the generated pages, with their links, into the assembled book and into its table of
    contents.
    """
    entries = []
    for name, markdown in generated(project):
        (folder / "generated").mkdir(exist_ok=True)
        (folder / "generated" / f"{name}.md").write_text(
            linker.markdown(markdown, f"generated/{name}.html"), "utf-8"
        )
        entries.append({"file": f"generated/{name}"})
    if entries:
        toc.setdefault("parts", []).append({"caption": "The record", "chapters": entries})


def unreported(project: Project, pages: list[Page]) -> list[str]:
    """Executable claims that this build's notebooks do not report. In a plan, chapters that need an
    engine are not asked.
    """
    if not (project.root / claims.FOLDER).is_dir():
        return []
    chapters = {
        page.name: notebooks.read(page.out)
        for page in pages
        if page.title is None and page.out.is_file()
    }
    silent = {name for name, notebook in chapters.items() if _not_run(notebook)}
    return claims.unreported(
        chapters, [claim for claim in claims.every() if claim.executed_by not in silent]
    )


# Badges --------------------------------------------------------------------------------------------------------------------------------


def badges(page: Page, notebook: dict[str, Any]) -> str:
    """What a page's numbers were taken on, when, with which vLLM, and how many findings it shows,
    as a line of HTML.
    """
    made = page.made()
    said: list[tuple[str, str]] = [("taken on", ", ".join(_taken_on(page, notebook)))]
    if date := made.get("date"):
        said.append(("run", date))
    else:
        said.append(("run", "did not end"))
    if version := _vllm(page, notebook):
        said.append(("vLLM", version))
    said.append(("findings", _findings(page, notebook)))
    return badge_line(said)


def badge_line(said: Iterable[tuple[str, str]]) -> str:
    """Badges, each a name and what it says, as HTML."""
    items = "".join(f"<li><span>{name}</span> {html.escape(text)}</li>" for name, text in said)
    return f'<ul class="sb-badges" aria-label="About this page">{items}</ul>'


def counted(severities: Iterable[str]) -> str:
    """`2 errors, 1 warning`, or `none`."""
    found = list(severities)
    parts = []
    for severity in ("error", "warning", "info"):
        if count := found.count(severity):
            parts.append(f"{count} {severity}{'s' if count > 1 and severity != 'info' else ''}")
    return ", ".join(parts) or "none"


class Made:
    """The day on which this checkout first built each generated page as it is now; a page that
    comes out the same again keeps its day.

    So a build that changes nothing leaves the site as it is, also on the next day. A fresh checkout
    knows no earlier day. Where a page holds `MADE`, its day is put in.
    """

    def __init__(self, file: Path) -> None:
        """`file`: where the days are kept from one build to the next."""
        self._file = file
        try:
            kept = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            kept = None
        known = kept.items() if isinstance(kept, dict) else ()
        self._before: dict[str, dict[str, str]] = {
            name: entry for name, entry in known if isinstance(entry, dict)
        }
        self._now: dict[str, dict[str, str]] = {}

    def put(self, name: str, text: str) -> str:
        """The page with its day."""
        digest, known = fingerprint.text(text), self._before.get(name, {})
        date = known.get("date") if known.get("fingerprint") == digest else None
        self._now[name] = {"fingerprint": digest, "date": date or datetime.date.today().isoformat()}
        return text.replace(MADE, self._now[name]["date"])

    def save(self) -> None:
        """Keep the days of the pages that there are now."""
        self._file.write_text(json.dumps(self._now, indent=1, sort_keys=True) + "\n", "utf-8")


def _not_run(notebook: dict[str, Any]) -> bool:
    return any(notebooks.NOT_RUN in cell["source"] for cell in notebook["cells"])


def _taken_on(page: Page, notebook: dict[str, Any]) -> list[str]:
    """What its metadata says (`{"sparkbook": {"taken_on": ["H100"]}}`), else what follows from the
    engine that it needs.
    """
    if stated := notebook["metadata"].get("sparkbook", {}).get("taken_on"):
        return list(stated)
    if page.engine == "none":
        return ["published figures"]
    return ["no engine: a plan"] if _not_run(notebook) else ["this build's CPU engine"]


def _vllm(page: Page, notebook: dict[str, Any]) -> str | None:
    if page.title is not None:
        from sparkbook import recipes

        image = recipes.load(page.values["recipe_id"]).image
        return (image.vllm or "not stated").removeprefix("==") if image else None
    if page.engine != "none" and not _not_run(notebook):
        return _pinned_engine()
    from sparkbook import releases

    return f"facts up to {releases.table()['releases'][-1]}"


def _pinned_engine() -> str | None:
    from sparkbook.book.project import here

    pins = here().root / "requirements-engine.txt"
    found = (
        re.search(r"^vllm(?:-cpu)?==(\S+)", pins.read_text("utf-8"), re.MULTILINE)
        if pins.is_file()
        else None
    )
    return found[1] if found else None


def _findings(page: Page, notebook: dict[str, Any]) -> str:
    if page.title is not None:
        from sparkbook import lint, recipes

        found = [
            finding.severity
            for finding in lint.lint(recipes.load(page.values["recipe_id"])).findings
        ]
    else:
        shown = [
            output.get("data", {}).get("text/html", "")
            for cell in notebook["cells"]
            for output in cell.get("outputs", [])
        ]
        found = [severity for text in shown for severity in _FINDING.findall("".join(text))]
    return counted(found)


# Sources -------------------------------------------------------------------------------------------------------------------------------


@dataclass
class _Cited:
    """A source, and what was taken from it."""

    title: str
    dates: set[str] = field(default_factory=set)
    taken: dict[str, list[str]] = field(default_factory=dict)

    def take(self, kind: str, what: str) -> None:
        if what not in self.taken.setdefault(kind, []):
            self.taken[kind].append(what)


def cited(project: Project) -> dict[str, _Cited]:
    """Every source that claims, recipes, rules, images and the landscape cite, by its address; one
    that has none, by its words.
    """
    from sparkbook import landscape, recipes
    from sparkbook.book import rules
    from sparkbook.releases import images

    found: dict[str, _Cited] = {}

    def at(url: str, title: str, date: Any = None) -> _Cited:
        one = found.setdefault(url.rstrip("/"), _Cited(""))
        one.title = one.title or title
        if date:
            one.dates.add(str(date))
        return one

    for register in claims.registers().values():
        at(register.source.url, register.source.title, register.source.date)
    for claim in claims.every():
        at(claim.source.url, claim.source.title, claim.source.date).take("claims", claim.id)
        for url in _ADDRESS.findall(claim.check):
            at(url, "").take("checks of claims", claim.id)
    for name in project.recipe_ids():
        for source in recipes.load(name).sources:
            if source.url:
                at(source.url, source.title, source.date).take("recipes", name)
    for one in rules.every():
        words = one.source.rstrip(".")
        for url, title in _addresses(one.source) or [(words, words)]:
            at(url, title).take("rules", one.code)
    for image in images.all():
        for key in (image.source, *(bug.source for bug in image.bugs)):
            source = images.source(key)
            at(source.url, source.title, source.date).take("images", image.image)
    for resource in landscape.RESOURCES:
        at(resource.url, resource.name, resource.seen).take("landscape", resource.name)
    for url, one in found.items():
        one.title = one.title or url.removeprefix("https://")
    return found


def _addresses(source: str) -> list[tuple[str, str]]:
    """The addresses in a rule's source with their titles: `[title](address)`, or the words before
    the address; empty where it has none.
    """
    named = {url: title.replace("`", "") for title, url in _NAMED.findall(source)}
    words = source.split("http", 1)[0].strip(" ,:(<[")
    return [(url, named.get(url, "" if named else words)) for url in _ADDRESS.findall(source)]


_LINKS: dict[str, Callable[[str], str]] = {
    "claims": lambda name: f'<a href="claims.html#{name}">{name}</a>',
    "checks of claims": lambda name: f'<a href="claims.html#{name}">{name}</a>',
    "recipes": lambda name: f'<a href="../models/{name.replace("/", "-")}.html">{name}</a>',
    "rules": lambda code: f'<a href="../{_places()[code]}">{code}</a>',
}


def sources_page(project: Project) -> str:
    """The sources as a table that can be sorted and filtered."""
    found = cited(project)
    addresses = sum(url.startswith("https://") for url in found)
    rows = []
    for url, one in sorted(found.items(), key=lambda item: (item[1].title.lower(), item[0])):
        taken = []
        for kind, names in one.taken.items():
            shown = [_LINKS.get(kind, html.escape)(name) for name in names]
            rest = (
                f"<details><summary>and {len(shown) - MOST}"
                f" more</summary>{', '.join(shown[MOST:])}</details>"
                if shown[MOST:]
                else ""
            )
            taken.append(f"{kind}: {', '.join(shown[:MOST])}{rest}")
        date = max(one.dates) if one.dates else "–"
        title = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(one.title))
        link = f'<a href="{html.escape(url)}">{title}</a>' if url.startswith("https://") else title
        rows.append(
            f'<tr><td>{link}</td><td class="sb-date">{date}</td><td>{"<br>".join(taken)}</td></tr>'
        )
    intro = (
        f"Every source that this book cites: {addresses} addresses, and {len(found) - addresses}"
        " that have none, such as a run of this project's own. Each with the date of the source"
        " or, where it states none, the day it was read, and what was taken from it. Facts and"
        " figures were taken over; sentences and code were not. A dash: no date is stated."
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Source", "Date", "Taken from it"))
    table = (
        '<table class="table sb-table sb-record" data-example="gemma'
        f' rules"><thead><tr>{head}</tr></thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table>"
    )
    return f'# Sources\n\n{intro}\n\n```{{raw}} html\n<div class="sb-scroll">{table}</div>\n```\n'


@functools.cache
def _places() -> dict[str, str]:
    """The address of every rule, signature and check."""
    from sparkbook.book import links

    return links.addresses({}, {})


# What changed
# --------------------------------------------------------------------------------------------------------------------------


def then() -> str:
    """The newest vLLM release that was out on the day of the guide."""
    from packaging.version import Version

    from sparkbook.landscape import RELEASES

    return max(
        (one.vllm for one in RELEASES if one.track == "vLLM" and str(one.date) <= SINCE),
        key=Version,
    )


def changes_page() -> str:
    """vLLM's interface, images and claims: what is another today than on the day of the guide."""
    from sparkbook import releases
    from sparkbook.landscape import RELEASES
    from sparkbook.releases import images
    from sparkbook.releases.changelog import explain

    before, after = then(), releases.table()["releases"][-1]
    between = [
        one
        for one in releases.table()["releases"]
        if one not in releases.table()["releases"][: releases.get(before).index + 1]
    ]
    changes = releases.diff(before, after)
    lines = [
        "# What changed since June 2026",
        "",
        (
            f"The guide that this book starts from is of {SINCE}, when vLLM {before} was the newest"
            f" release; {len(between)} releases came since, up to {after}. What follows is worked"
            " out from vLLM's releases, the facts about images and the {doc}`claims register"
            " <claims>`."
        ),
        "",
        "## vLLM's interface",
        "",
        "| what | added | removed | changed |",
        "|---|--:|--:|--:|",
    ]
    for category, title in releases.CATEGORIES.items():
        counted = [
            sum(1 for one in changes if one.category == category and one.change == kind)
            for kind in ("added", "removed", "changed")
        ]
        if any(counted):
            lines.append(f"| {title} | {' | '.join(map(str, counted))} |")
    for category, title in (
        ("options", "Options that are gone"),
        ("envs", "Environment variables that are no longer read"),
    ):
        gone = [one.name for one in changes if one.category == category and one.change == "removed"]
        marks = "--" if category == "options" else ""
        lines += ["", f"**{title}:** " + ", ".join(f"`{marks}{name}`" for name in gone) + "."]
    deprecated = [
        one
        for one in changes
        if one.category == "options"
        and one.change == "changed"
        and (one.after or {}).get("deprecated")
    ]
    lines += ["", "**Deprecated since:**", "", *(f"- {marked(explain(one))}" for one in deprecated)]
    lines += [
        "",
        f"The whole list: `{command_line('sparkbook', 'releases', 'diff', before, after)}`.",
        "",
        "## Images",
        "",
    ]
    for one in (one for one in RELEASES if str(one.date) > SINCE):
        inside = "" if one.name == one.vllm else f" with vLLM {one.vllm}"
        when = f"{'out' if one.precision == 'day' else 'out by'} {one.date}"
        lines.append(f"- {one.track} {one.name}{inside}, {when} ([source]({one.source}))")
    lines += ["", "Known to be wrong with an image, and reported since:", ""]
    for image in images.all():
        for bug in image.bugs:
            source = images.source(bug.source)
            if str(source.date) > SINCE:
                tag = image.tags if isinstance(image.tags, str) else image.tags[0]
                cite = f"[{source.title}]({source.url}), {source.date}"
                lines.append(
                    f"- `{image.image}:{tag}`: {marked(bug.what)}. Instead: {marked(bug.fix)}"
                    f" ({cite})"
                )
    expired = [claim for claim in claims.every() if claim.verdict == "expired"]
    lines += ["", "## Claims that have expired", "", "True at their time, and not today:", ""]
    lines += ["| claim | what holds now |", "|---|---|"]
    lines += [
        f"| [{_cell(claim.statement)}](claims.html#{claim.id}) | {_cell(claim.check)} |"
        for claim in expired
    ]
    text = "\n".join(lines) + "\n"
    # A page beside this one: its rows are HTML, which Markdown's own links do not know.
    return re.sub(
        r"\[([^\]]*)\]\((claims\.html#[^)]+)\)",
        lambda match: f'<a href="{match[2]}">{match[1]}</a>',
        text,
    )


def _cell(text: str) -> str:
    return marked(text).replace("|", "\\|").replace("[", "(").replace("]", ")")
