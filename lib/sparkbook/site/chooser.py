"""The start page's chooser: for each use, memory and recipe the launch line that fits, what was
changed and why, what speaks against it, and the speed to expect.

All answers are worked out when the site is assembled (`tailor`). The page holds them as one block
of JSON, which `_static/chooser.js` shows; without scripts the page is a table of all recipes.
"""

from __future__ import annotations

import html
import json
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from sparkbook import recipes
from sparkbook.formats import FORMATS
from sparkbook.plan.memory import MemoryPlan
from sparkbook.recipes import Recipe
from sparkbook.site import model_pages, recommended
from sparkbook.site.tailor import MEMORIES, USES, Memory, Refused, Tailored, Use, tailored

FIRST = "qwen3.8-27b-nvfp4"
"""The recipe that is shown before anything is chosen: the best for a chat on 128 GB."""


def chosen(ids: Iterable[str]) -> list[Recipe]:
    """List the recipes to choose from: those for a Spark, not those of the book's own engine."""
    return [recipe for recipe in map(recipes.load, ids) if recipe.image is not None]


class _Table:
    """Values that come more than once are kept once, and named by their number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Any) -> int:
        key = json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


class _Tables:
    """What answers are made of."""

    def __init__(self) -> None:
        self.lines, self.findings, self.speeds, self.reasons, self.answers = (
            _Table() for _ in range(5)
        )

    def number(self, one: Tailored | Refused, use: Use) -> int:
        """Return the number of an answer: why a recipe is not offered, or its line with all that
        is said of it.
        """
        if isinstance(one, Refused):
            return self.answers.number({"no": self.reasons.number(one.why)})
        plan, line = one.plan, FORMATS["docker"].write(one.recipe)
        rates = [
            [s.concurrency, _round(s.low), _round(s.tok_s), _round(s.high)] for s in plan.decode
        ]
        answer = {
            "line": [self.lines.number(text) for text in line.splitlines()],
            "said": [
                self.findings.number([f.severity, f.message, f.fix, f.rule, f.why])
                for f in one.findings
            ],
            "changed": [[text, own, self.reasons.number(why)] for text, own, why in one.changes],
            "verdict": plan.verdict,
            "context": plan.setup.context,
            "sequences": plan.setup.sequences,
            "kv": [round(plan.tokens.low), round(plan.tokens.high)] if plan.tokens else None,
            "speed": self.speeds.number(rates),
            "behind": plan.decode[0].context if rates else None,
        }
        if use.agent:
            answer["cache"] = one.caches
            answer["wait"] = [
                [f.prompt, f.cached, _round(f.low_s), _round(f.seconds), _round(f.high_s)]
                for f in plan.first_token or ()
            ]
        return self.answers.number(answer)


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def data(ids: Iterable[str]) -> dict[str, Any]:
    """Return everything that the chooser knows.

    `recipes[i].answers` has a row a use, and in it a number a memory: that of an entry of
    `answers`. One with `no` says why the recipe is not offered; any other has its `line`, what is
    `said` of it, what is `changed` and why, and what the plan says. Lines, findings (severity,
    message, fix, rule, address of its section), speeds (requests, then low, middle, high tok/s) and
    reasons are numbers of the tables with these names. `order` has the offered recipes of each use
    and memory, the best first.
    """
    ids = list(ids)
    tables = _Tables()
    headings = {
        recipe.id: model_pages.title(found)
        for found in model_pages.by_page(ids).values()
        for recipe in found
    }
    current = [recipe for recipe in chosen(ids) if recipe.successor is None]
    found = [[list(tailored(recipe, use)) for use in USES] for recipe in current]
    entries = []
    for recipe, of_recipe in zip(current, found, strict=True):
        answers = [
            [tables.number(one, use) for one in row]
            for use, row in zip(USES, of_recipe, strict=True)
        ]
        entries.append(_entry(recipe, headings[recipe.id]) | {"answers": answers})
    order = [
        [_order(current, [row[u][m] for row in found], one) for m, one in enumerate(MEMORIES)]
        for u in range(len(USES))
    ]
    return {
        "uses": [{"key": use.key, "title": use.title} for use in USES],
        "memories": [
            {"key": one.key, "title": one.title, "options": one.options} for one in MEMORIES
        ],
        "recipes": entries,
        "order": order,
        "answers": tables.answers.values,
        "lines": tables.lines.values,
        "findings": tables.findings.values,
        "speeds": tables.speeds.values,
        "reasons": tables.reasons.values,
        "recommended": {
            one.recipe: [one.who, one.why, one.url, one.date.isoformat()]
            for one in recommended.recommended()
        },
        "obsolete": [_obsolete(one, ids) for one in chosen(ids) if one.successor],
    }


def _order(
    current: Sequence[Recipe], found: Sequence[Tailored | Refused], place: Memory
) -> list[int]:
    """Return the numbers of the recipes that are offered: on one Spark first, then those against
    which nothing speaks, then as recommended.
    """

    def key(number: int) -> tuple[Any, ...]:
        recipe, one = current[number], found[number]
        assert isinstance(one, Tailored)
        memory_gb = 64 if place.memory_gib else 128
        order = recommended.order(recipe, memory_gb)
        return recipe.topology.nodes, one.warned, order, recipe.id

    return sorted((i for i, one in enumerate(found) if isinstance(one, Tailored)), key=key)


def _entry(recipe: Recipe, heading: str) -> dict[str, Any]:
    who, source = recommended.line_source(recipe)
    figure = recipe.benchmarks.best
    published = figure and {
        "tok_s": figure.best_tok_s,
        "prompt": figure.prompt_tokens or figure.context_tokens,
        "source": recipe.source(figure.source).title,
        "url": recipe.source(figure.source).url,
        "date": figure.date.isoformat() if figure.date else None,
    }
    return {
        "id": recipe.id,
        "title": recipe.title,
        "summary": recipe.summary,
        "model": heading,
        "page": model_pages.address(recipe),
        "publisher": recipe.model.publisher or "",
        "by": who,
        "date": source.date.isoformat() if source.date else "",
        "able": [name for name in ("tools", "vision") if getattr(recipe.capabilities, name)],
        "native": recipe.model.context.native,
        "weights": recipe.model.weights_gb,
        "nodes": recipe.topology.nodes,
        "pinned": bool(recipe.image and recipe.image.digest),
        "published": published,
        "drafted": recipe.draft is not None,
        "remarks": [
            [one.level, one.text, recipe.source(one.source).url or ""]
            for one in recipe.remarks
            if one.level != "note"
        ],
    }


def _obsolete(recipe: Recipe, ids: Sequence[str]) -> dict[str, str]:
    assert recipe.successor is not None
    newer = recipes.load(recipe.successor.recipe)
    there = newer.id in ids
    return {
        "title": recipe.title,
        "page": model_pages.address(recipe),
        "why": recipe.successor.why,
        "newer": newer.title,
        "newer_page": model_pages.address(newer) if there else "",
    }


def fit(planned: MemoryPlan) -> str:
    """Return the plan's verdict. If other options make it fit, name them, so that the model is not
    taken for too large.
    """
    changed = planned.fitting()
    words = {"may fit": "may not fit", "does not fit": "does not fit"}.get(
        planned.verdict, planned.verdict
    )
    if not changed:
        return planned.verdict
    shown = " ".join(f"--{name} {value}" for name, value in changed.items())
    asked = planned.setup.fraction
    if "max-model-len" in changed or planned.requested is None or words == planned.verdict:
        return f"fits with {shown}; {words} as it is"
    return f"fits with {shown}; {words} at {asked:g}"


def page(known: dict[str, Any]) -> str:
    """Return the chooser as Markdown to include: the table that is there without scripts, and the
    data from which the script makes the chooser.

    `known` is what `data` gave.
    """
    text = json.dumps(known, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    block = f'<script type="application/json" id="sb-chooser-data">{text}</script>'
    return (
        '```{raw} html\n<div id="sb-chooser"'
        f' data-first="{FIRST}"></div>\n{_plain_table(known)}\n{block}\n```\n'
    )


_COLUMNS = (
    "Recipe",
    "Tools",
    "Vision",
    "Context, tokens",
    "Published, tok/s",
    "Estimate, tok/s",
    "Model by",
    "Recipe by",
    "Date",
)


def _plain_table(known: dict[str, Any]) -> str:
    """Return all current recipes as their sources run them."""
    use = next(i for i, one in enumerate(known["uses"]) if one["key"] == "recipe")
    offered = known["order"][use][0]
    rest = [i for i in range(len(known["recipes"])) if i not in offered]
    rows = []
    for number in [*offered, *rest]:
        recipe = known["recipes"][number]
        answer = known["answers"][recipe["answers"][use][0]]
        rates = known["speeds"][answer["speed"]] if "speed" in answer else ()
        published = recipe["published"]
        cells = [
            *("yes" if name in recipe["able"] else "–" for name in ("tools", "vision")),
            f"{answer['context']:,}" if "context" in answer else "–",
            f"{published['tok_s']:g}" if published else "–",
            f"{rates[0][2]:.0f} ({rates[0][1]:.0f} to {rates[0][3]:.0f})" if rates else "–",
            html.escape(recipe["publisher"] or "–"),
            html.escape(recipe["by"]),
            recipe["date"] or "–",
        ]
        name = f'<a href="../{recipe["page"]}">{html.escape(recipe["title"])}</a>'
        rows.append(
            f'<tr><th scope="row">{name}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in _COLUMNS)
    return (
        '<div class="sb-scroll" id="sb-chooser-table"><table class="table sb-table"><caption>As'
        " their sources run them. Speed is that of one request; the estimate is with up to 8,192"
        " tokens of context.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
