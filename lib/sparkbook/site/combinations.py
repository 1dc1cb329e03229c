"""The page of the known-bad combinations: the whole table, with what a launch line can't show."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.releases import known_bad
from sparkbook.releases.known_bad import Combination
from sparkbook.site import badges

PAGE = "known-bad"
"""Name of the page, below `rules/`."""


def page() -> str:
    """Return the page in Markdown."""
    table = known_bad.combinations()
    disputed = sum(one.disputed is not None for one in table)
    facts = [
        ("figures", f"{len(table)} combinations, {disputed} of them disputed"),
        ("built", badges.MADE),
    ]
    intro = (
        "Combinations of release, model, options, GPU, driver and kernel that public reports name"
        " as bad. `sparkbook lint` looks for them in a launch line, `sparkbook diagnose` in what a"
        " log shows. Nothing here was reproduced on a Spark; each row names its reports, and what"
        " contradicts it."
    )
    head = (
        "| code | combination | vLLM | GPU | what happens | use instead | reports |\n"
        "|---|---|---|---|---|---|---|"
    )
    rows = "\n".join(map(_row, table))
    title = "# Known-bad combinations"
    return f"{title}\n\n{badges.line(facts)}\n\n{intro}\n\n{head}\n{rows}\n"


def _row(one: Combination) -> str:
    cells = (
        f"{one.code} ({one.severity})",  # every page links the codes that it names
        one.title,
        _releases(one),
        ", ".join(one.gpus) or "any",
        one.symptom + (f" *(disputed: {one.disputed})*" if one.disputed else ""),
        one.instead,
        ", ".join(_reports(one)),
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _releases(one: Combination) -> str:
    if one.fixed_in:
        return f"{one.since or 'older'}, fixed in {one.fixed_in}"
    if one.since and one.since == one.until:
        return one.since
    return f"{one.since or 'older'} to {one.until or 'now'}" if one.since or one.until else "any"


def _reports(one: Combination) -> Iterator[str]:
    for source in one.sources:
        yield f"[{source.date}]({source.url})"
