"""The page on what changed since the guide: vLLM's interface, images, and claims that expired."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook import recipes, releases
from sparkbook.register import claims
from sparkbook.releases import images
from sparkbook.releases.changelog import explain
from sparkbook.site.landscape import RELEASES
from sparkbook.site.markdown import marked
from sparkbook.site.recommended import recommended
from sparkbook.util.markup import cell
from sparkbook.util.shell_text import command_line

SINCE = "2026-06-20"
"""The day of the guide: what the page counts from."""


def then() -> str:
    """Return the newest vLLM release that was out on the day of the guide."""
    from packaging.version import Version

    return max(
        (one.vllm for one in RELEASES if one.track == "vLLM" and str(one.date) <= SINCE),
        key=Version,
    )


def page() -> str:
    """Return the page that lists what changed in vLLM's interface, images and claims since the
    guide's day.
    """
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
            f"The guide that this book starts from dates from {SINCE}, when vLLM {before} was the"
            f" newest release. vLLM has published {len(between)} releases since, up to {after}."
            " This page is computed from vLLM's releases, the facts about images and the"
            " {doc}`claims register <claims>`."
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
        ("options", "Removed options"),
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
    lines += ["", "Faults of images that were reported since:", ""]
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
    lines += ["", "## Models", "", *_models(), "", "Recipes of this book that are obsolete:", ""]
    lines += ["| recipe | take instead | why |", "|---|---|---|", *_replaced()]
    expired = [claim for claim in claims.every() if claim.verdict == "expired"]
    lines += ["", "## Claims that have expired", "", "True at the time, no longer true:", ""]
    lines += ["| claim | now |", "|---|---|"]
    lines += [
        f"| [{_linkless(claim.statement)}](claims.html#{claim.id}) | {_linkless(claim.check)} |"
        for claim in expired
    ]
    text = "\n".join(lines) + "\n"
    # A page beside this one: its rows are HTML, which Markdown's own links do not know.
    return re.sub(
        r"\[([^\]]*)\]\((claims\.html#[^)]+)\)",
        lambda match: f'<a href="{match[2]}">{match[1]}</a>',
        text,
    )


def _models() -> Iterator[str]:
    """Yield what is recommended for a Spark today, and by whom."""
    yield "Recommended for a Spark now, by others:"
    yield ""
    for one in recommended():
        yield f"- `{one.recipe}`, by {one.who}: {one.why} ([read {one.date}]({one.url}))"


def _replaced() -> Iterator[str]:
    """Yield the rows of recipes that have a successor."""
    for recipe in recipes.all():
        if newer := recipe.successor:
            yield f"| `{recipe.id}` | `{newer.recipe}` | {cell(marked(newer.why))} |"


def _linkless(text: str) -> str:
    """Return a text for a cell of a table that is a link itself."""
    return cell(marked(text)).replace("[", "(").replace("]", ")")
