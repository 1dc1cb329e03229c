"""The page of all sources that the book cites."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sparkbook import recipes, rules
from sparkbook.register import claims
from sparkbook.releases import images
from sparkbook.site import landscape
from sparkbook.util.markup import code

if TYPE_CHECKING:
    from sparkbook.runner.project import Project

MOST = 12
"""Names of one kind that are shown for a source before the rest is folded."""

_ADDRESS = re.compile(r"https://[^\s)\]>\"']+[^\s)\]>\"'.,;:]")
_NAMED = re.compile(r"\[([^\]]+)\]\((https://[^)]+)\)")


@dataclass
class _Cited:
    """A source, and what was taken from it."""

    title: str
    dates: set[str] = field(default_factory=set)
    taken: dict[str, list[str]] = field(default_factory=dict)

    def take(self, kind: str, what: str) -> None:
        if what not in self.taken.setdefault(kind, []):
            self.taken[kind].append(what)


class _Citation(NamedTuple):
    """One use of a source: its address or words, its title and date, and what was taken from it."""

    url: str
    title: str = ""
    date: object = None
    kind: str = ""
    what: str = ""


def cited(project: Project) -> dict[str, _Cited]:
    """Return every source that the book cites, by its address or, without one, its words."""
    found: dict[str, _Cited] = {}
    for citation in (*_of_claims(), *_of_recipes(project), *_of_rules(), *_of_images()):
        one = found.setdefault(citation.url.rstrip("/"), _Cited(""))
        one.title = one.title or citation.title
        if citation.date:
            one.dates.add(str(citation.date))
        if citation.kind:
            one.take(citation.kind, citation.what)
    for url, one in found.items():
        one.title = one.title or url.removeprefix("https://")
    return found


def _of_claims() -> Iterator[_Citation]:
    for register in claims.registers().values():
        yield _Citation(register.source.url, register.source.title, register.source.date)
    for claim in claims.every():
        source = claim.source
        yield _Citation(source.url, source.title, source.date, "claims", claim.id)
        for url in _ADDRESS.findall(claim.check):
            yield _Citation(url, kind="checks of claims", what=claim.id)


def _of_recipes(project: Project) -> Iterator[_Citation]:
    for name in project.recipe_ids():
        for source in recipes.load(name).sources:
            if source.url:
                yield _Citation(source.url, source.title, source.date, "recipes", name)


def _of_rules() -> Iterator[_Citation]:
    for one in rules.every():
        words = one.source.rstrip(".")
        for url, title in _addresses(one.source) or [(words, words)]:
            yield _Citation(url, title, kind="rules", what=one.code)


def _of_images() -> Iterator[_Citation]:
    for image in images.all():
        for key in (image.source, *(bug.source for bug in image.bugs)):
            source = images.source(key)
            yield _Citation(source.url, source.title, source.date, "images", image.image)
    for name, start in images.starts().items():
        source = images.source(start.source)
        yield _Citation(source.url, source.title, source.date, "images", name)
    for resource in landscape.RESOURCES:
        yield _Citation(resource.url, resource.name, resource.seen, "landscape", resource.name)


def _addresses(source: str) -> list[tuple[str, str]]:
    """Return the addresses in a rule's source with their titles: `[title](address)`, or the words
    before the address; empty where it has none.
    """
    named = {url: title.replace("`", "") for title, url in _NAMED.findall(source)}
    words = source.split("http", 1)[0].strip(" ,:(<[")
    return [(url, named.get(url, "" if named else words)) for url in _ADDRESS.findall(source)]


@functools.cache
def _places() -> dict[str, str]:
    """Return the address of every rule, signature and check."""
    return {one.code: one.address for one in rules.every()}


_LINKS: dict[str, Callable[[str], str]] = {
    "claims": lambda name: f'<a href="claims.html#{name}">{name}</a>',
    "checks of claims": lambda name: f'<a href="claims.html#{name}">{name}</a>',
    "recipes": lambda name: f'<a href="../models/{name.replace("/", "-")}.html">{name}</a>',
    "rules": lambda rule: f'<a href="../{_places()[rule]}">{rule}</a>',
}


def page(project: Project) -> str:
    """Return the sources as a table that can be sorted and filtered."""
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
        title = code(one.title)
        link = f'<a href="{html.escape(url)}">{title}</a>' if url.startswith("https://") else title
        rows.append(
            f'<tr><td>{link}</td><td class="sb-date">{date}</td><td>{"<br>".join(taken)}</td></tr>'
        )
    intro = (
        f"Every source that this book cites: {addresses} addresses, and {len(found) - addresses}"
        " that have none, such as this project's own runs. The date is the source's own or, if it"
        " has none, the day we read it; a dash means no date. Facts and figures come from these"
        " sources; sentences and code do not."
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Source", "Date", "Used for"))
    table = (
        '<table class="table sb-table sb-record" data-example="gemma'
        f' rules"><thead><tr>{head}</tr></thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table>"
    )
    return f'# Sources\n\n{intro}\n\n```{{raw}} html\n<div class="sb-scroll">{table}</div>\n```\n'
