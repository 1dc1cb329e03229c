"""The claims register on the site: its page, and the links from chapters to it."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Mapping

from sparkbook import recipes
from sparkbook.register.claim_model import RUNS, VERDICTS, Claim
from sparkbook.register.execute import verdict_badge
from sparkbook.register.lookup import PAGE, counts, document, every
from sparkbook.register.prose import LINK, drawn, used_by
from sparkbook.runner.project import here
from sparkbook.util.markup import code, linked


def on_site(text: str, up: str = "../", seen: set[str] | None = None) -> str:
    """Return prose with its drawn figures as links to the claims' rows.

    Args:
        text: Markdown.
        up: way to the site's root.
        seen: claims that the page has drawn before; the first figure of each claim gets an address,
            which the claim's row links to.
    """

    def one(match: re.Match[str]) -> str:
        address = ""
        if seen is not None and match["id"] not in seen:
            seen.add(match["id"])
            address = f'id="from-{match["id"]}" '
        return (
            f'<a {address}class="sb-claim"'
            f' href="{up}{PAGE}.html#{match["id"]}">{html.escape(match["text"])}</a>'
        )

    return LINK.sub(one, text)


def uses(place: str, up: str = "../") -> str:
    """Return the claims that a page uses as a folded list for its end; empty if there are none."""
    found = used_by(place)
    if not found:
        return ""
    address = f"{up}{PAGE}.html"
    items = "".join(
        f'<li><a href="{address}#{claim.id}">{claim.id}</a> {verdict_badge(claim.verdict)}'
        f" {code(claim.statement)}</li>"
        for claim in found
    )
    return (
        f'<details class="sb-uses"><summary>{len(found)} claims of the register used on this'
        f" page</summary><ul>{items}</ul></details>"
    )


def page() -> str:
    """Return the register as a page: one table that can be sorted and filtered, a row a claim, with
    an address each.
    """
    kept = every()
    words = {
        "holds": "hold",
        "not-testable": "can't be tested here",
        "expired": "have expired",
        "false": "were false",
    }
    summary = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts(kept).items())
    executed = sum(1 for claim in kept if claim.executable)
    lines = [
        "# Claims register",
        "",
        (
            "The claims of the documents that this book starts from, in our words, and the result"
            f" of checking each: {len(kept)} claims, {summary}. Every build of this book executes"
            f" {executed} of them ({{doc}}`../notebooks/{RUNS}` and the chapters named). *Holds*:"
            " checked and true. *Expired*: true at the time, no longer true. *False*: never true."
            " *Not testable*: not without a Spark, or not at all; the page shows such a figure as"
            " the source's own, and where a check could refute it, the check passed."
        ),
        "",
        "The documents:",
        "",
        "```{raw} html",
        "<ul>",
    ]
    documents: dict[str, list[Claim]] = {}
    for claim in kept:
        documents.setdefault(document(claim), []).append(claim)
    for name, found in documents.items():
        source, date = found[0].source, max(claim.date for claim in found)
        link = f'<a href="{html.escape(source.url)}">{html.escape(source.title)}</a>'
        lines.append(
            f'<li id="source-{name}"><code>{name}</code>: {link}, {source.date}: {len(found)}'
            f" claims, checked on {date}"
        )
    places = {
        place: f"p{number}"
        for number, place in enumerate(
            sorted({place for claim in kept for place in _places(claim)})
        )
    }
    head = ["Claim", "Verdict", "Figures", "How checked", "Executed", "Source", "Used in"]
    top = "".join(f'<th scope="col">{text}' for text in head)
    table = (
        '<div class="sb-scroll"><table class="table sb-table sb-record sb-claims"'
        ' data-example="false gemma">'
    )
    table += f"<thead><tr>{top}</thead><tbody>"
    fields = {
        "verdict": {verdict: verdict.replace("-", " ") for verdict in VERDICTS},
        "document": {name: name for name in documents},
        "page": {short: place for place, short in places.items()},
    }
    # No closing tags in the table, and short classes: HTML needs no more, and the page stays light.
    return "\n".join(
        [
            *lines,
            "</ul>",
            _selects(fields),
            table,
            *(_row(claim, places) for claim in kept),
            "</table></div>",
            "```",
            "",
        ]
    )


def _selects(fields: Mapping[str, Mapping[str, str]]) -> str:
    """Return a choice for each field, by the class that its rows have. The style sheet hides the
    other rows, so it works without a script.
    """
    rules, selects = [], []
    for field, choices in fields.items():
        options = "".join(
            f'<option value="{value}">{html.escape(text)}</option>'
            for value, text in choices.items()
        )
        selects.append(
            f'<label>{field.capitalize()} <select class="sb-by-{field}"><option'
            f' value="">all</option>{options}</select></label>'
        )
        rules += [
            f'body:has(.sb-by-{field} [value="{value}"]:checked) .sb-claims tbody'
            f" tr:not(.{value}){{display:none}}"
            for value in choices
        ]
    return (
        f'<style>{"".join(rules)}</style><form class="sb-narrow" aria-label="Narrow the'
        f' register">{"".join(selects)}</form>'
    )


def _places(claim: Claim) -> list[str]:
    """List the pages that use a claim and are in this book."""
    return [
        place
        for place in dict.fromkeys([*claim.where, *drawn().get(claim.id, ())])
        if _exists(place)
    ]


def _row(claim: Claim, places: Mapping[str, str]) -> str:
    shown = [html.escape(f"{one.name}: {one}" if one.name else str(one)) for one in claim.figures]
    shown += [
        f"<code>{html.escape(name)} {html.escape(value)}</code>"
        for name, value in claim.stated_settings
    ]
    for recipe, what in ((claim.line, "line"), (claim.scores, "scores")):
        if recipe:
            name = recipe.partition("@")[0]
            shown.append(f'<a href="../models/{name}.html">{what} of {name}</a>')
    ran = (
        f'<a href="../notebooks/{claim.executed_by}.html">{claim.executed_by}</a>'
        if claim.executed_by
        else "no"
    )
    used = (
        ", ".join(
            f'<a href="../{_home(place)}.html{_from(claim, place)}">{html.escape(place)}</a>'
            for place in _places(claim)
        )
        or "–"
    )
    name = document(claim)
    cells = [
        f'<a href="#{claim.id}"><code>{claim.id}</code></a><p>{code(claim.statement)}',
        verdict_badge(claim.verdict),
        "<br>".join(shown) or "–",
        linked(claim.check),
        ran,
        (
            f'<a href="#source-{name}">{name}</a>'
            + html.escape(f", {claim.section}" if claim.section else "")
        ),
        used,
    ]
    classes = [claim.verdict, name, *(places[place] for place in _places(claim))]
    return f'<tr id="{claim.id}" class="{" ".join(classes)}"><td>{"<td>".join(cells)}'


def _from(claim: Claim, place: str) -> str:
    """Return the place in a chapter that draws the claim's figure."""
    return f"#from-{claim.id}" if place in drawn().get(claim.id, ()) else ""


def _home(place: str) -> str:
    return place if "/" in place else f"notebooks/{place}"


@functools.cache
def _exists(place: str) -> bool:
    """Return whether the page of a place is in this book: a chapter or a recipe's page."""
    if place.startswith("models/"):
        return place.removeprefix("models/") in recipes.ids()
    return (here().root / "notebooks" / f"{place}.ipynb").is_file()
