"""The start page's chooser: for each recipe, use and memory the launch line, whether it fits, the
speed to expect, and the findings.

All answers are worked out when the site is assembled, by what the command asks as well: `formats`,
`plan` and `lint`. The page holds them as one block of JSON, which `_static/chooser.js` shows;
without scripts the page is a table of all recipes.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sparkbook import lint, recipes
from sparkbook.formats import FORMATS
from sparkbook.plan import memory, request
from sparkbook.plan.memory import MemoryPlan
from sparkbook.recipes import Recipe


@dataclass(frozen=True)
class Use:
    """What a server is for: None leaves what the recipe says.

    Attributes:
        key, title: its name in the data, and for people.
        context: tokens of one conversation.
        sequences: conversations at once.
    """

    key: str
    title: str
    context: int | None = None
    sequences: int | None = None

    @property
    def options(self) -> str:
        """The same for `sparkbook plan`."""
        return f" --context {self.context} --seqs {self.sequences}" if self.context else ""


@dataclass(frozen=True)
class Memory:
    """The memory of a Spark, and what of it is available before the start, GiB; None: 128 GB, and
    nothing else runs.
    """

    key: str
    title: str
    available_gib: int | None = None
    memory_gib: float | None = None

    @property
    def options(self) -> str:
        """The same for `sparkbook plan`."""
        memory = f" --memory-gib {self.memory_gib:g}" if self.memory_gib else ""
        return memory + (f" --available-gib {self.available_gib}" if self.available_gib else "")


USES = (
    Use("recipe", "Settings of the recipe"),
    Use("chat", "One person, chats of 16,384 tokens", 16_384, 1),
    Use("agent", "One coding agent, 131,072 tokens", 131_072, 1),
    Use("team", "Eight at once, 32,768 tokens each", 32_768, 8),
)
MEMORIES = (
    Memory("all", "128 GB, nothing else running"),
    Memory("96", "96 GiB available (desktop running)", 96),
    Memory("64", "64 GiB available (second server running)", 64),
    Memory("spark64", "64 GB Spark, nothing else running", memory_gib=60.8),
)
"""A Spark of 64 GB is planned with half of what vLLM shows of one of 128 GB: no public log of such
a machine is known.
"""

FIRST = "qwen3.6-35b-a3b-nvfp4-2026-09"
"""The recipe that is shown before anything is chosen."""

_VARIABLES = {"max-model-len": "MAX_MODEL_LEN", "max-num-seqs": "MAX_NUM_SEQS"}
"""What images with a script of their own call these options."""


def chosen(ids: Iterable[str]) -> list[Recipe]:
    """List the recipes to choose from: those for a Spark, not those of the book's own engine."""
    return [recipe for recipe in map(recipes.load, ids) if recipe.image is not None]


def adjustable(recipe: Recipe) -> bool:
    """Return whether the line itself can ask for a context and a number of sequences; not where a
    script in the image sets them.
    """
    return recipe.launch.entrypoint != "wrapper" or all(
        name in recipe.launch.env for name in _VARIABLES.values()
    )


def for_use(recipe: Recipe, use: Use) -> Recipe:
    """Return the recipe with the context and the number of sequences of a use, as options, or as
    the variables of an image that takes those.

    A recipe that is not `adjustable` stays as it is.
    """
    if use.context is None or use.sequences is None or not adjustable(recipe):
        return recipe
    wanted = {"max-model-len": use.context, "max-num-seqs": use.sequences}
    if recipe.launch.entrypoint == "wrapper":
        changed = {_VARIABLES[name]: str(value) for name, value in wanted.items()}
        return recipe.model_copy(update={"env": {**recipe.env, **changed}})
    return recipe.model_copy(
        update={"serve": recipe.serve.model_copy(update={"args": {**recipe.serve.args, **wanted}})}
    )


def for_plan(recipe: Recipe, planned: MemoryPlan) -> Recipe | None:
    """Return the recipe with the options that make it fit the plan's machine; None where it fits
    as it is, where nothing makes it fit, or a script in the image sets these options.
    """
    changed = planned.fitting()
    if not changed or recipe.launch.entrypoint == "wrapper":
        return None
    serve = recipe.serve.model_copy(update={"args": {**recipe.serve.args, **changed}})
    return recipe.model_copy(update={"serve": serve})


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


def data(ids: Iterable[str]) -> dict[str, Any]:
    """Return everything that the chooser knows.

    `recipes[i].lines` and `.lint` have one entry a use, `.plans` one a use and, within it, one a
    memory. So has `.fitted`: the lines and findings with options that fit that memory, null where
    they are those of the use. Lines and findings are numbers of the tables `lines` and `findings`;
    a finding is severity, message, fix, rule and the address of the rule's section. A plan has the
    verdict, the same for people as `fit`, context, sequences, the KV cache's tokens, its findings,
    and the number of its speeds: requests, then low, middle, high tok/s, with `behind` tokens
    behind each request.
    """
    lines, findings, speeds = _Table(), _Table(), _Table()

    def numbers(found: Any) -> list[int]:
        return [findings.number([f.severity, f.message, f.fix, f.rule, f.why]) for f in found]

    hosts = [request.host(one.memory_gib, one.available_gib) for one in MEMORIES]

    def written(recipe: Recipe) -> list[int]:
        return [lines.number(line) for line in FORMATS["docker"].write(recipe).splitlines()]

    entries = []
    for recipe in chosen(ids):
        launches, judged, plans, fitted = [], [], [], []
        for use in USES:
            changed = for_use(recipe, use)
            launches.append(written(changed))
            judged.append(numbers(lint.lint(changed).findings))
            setup = request.read(recipe.id, request.Override(use.context, use.sequences))
            found = [memory.plan(setup, host) for host in hosts]
            plans.append(
                [{**_plan(one.to_dict(), numbers, speeds), "fit": fit(one)} for one in found]
            )
            # The first memory shows the recipe's own line.
            lower = [None, *(for_plan(changed, one) for one in found[1:])]
            fitted.append(
                [one and [written(one), numbers(lint.lint(one).findings)] for one in lower]
            )
        entry: dict[str, Any] = {
            "id": recipe.id,
            "title": recipe.title,
            "summary": recipe.summary,
            "family": recipe.family,
            "page": recipe.slug,
            "weights": recipe.model.weights_gb,
            "nodes": recipe.topology.nodes,
            "adjustable": adjustable(recipe),
        }
        answers = {"lines": launches, "lint": judged, "plans": plans, "fitted": fitted}
        entries.append({**entry, **answers})
    choices = {
        name: [
            {"key": choice.key, "title": choice.title, "options": choice.options}
            for choice in table
        ]
        for name, table in (("uses", USES), ("memories", MEMORIES))
    }
    return {
        **choices,
        "lines": lines.values,
        "findings": findings.values,
        "speeds": speeds.values,
        "recipes": entries,
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


def _plan(
    answer: dict[str, Any], numbers: Callable[[Any], list[int]], speeds: _Table
) -> dict[str, Any]:
    summary = answer["summary"]
    rates = [[speed["requests"], *speed["tok_s"]] for speed in summary["decode"] or ()]
    return {
        "verdict": summary["verdict"],
        "context": summary["context"],
        "sequences": summary["sequences"],
        "kv": summary["kv_tokens"],
        "said": numbers(SimpleNamespace(**finding) for finding in answer["findings"]),
        "speed": speeds.number(rates),
        "behind": summary["decode"][0]["context"] if rates else None,
    }


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


def _plain_table(known: dict[str, Any]) -> str:
    rows = []
    for recipe in known["recipes"]:
        plan = recipe["plans"][0][0]
        rates = known["speeds"][plan["speed"]]
        speed = f"{rates[0][2]:.0f} ({rates[0][1]:.0f} to {rates[0][3]:.0f})" if rates else "–"
        behind = f"{plan['behind']:,}" if rates else "–"
        grave = sum(
            known["findings"][number][0] != "info"
            for number in dict.fromkeys(plan["said"] + recipe["lint"][0])
        )
        name = f'<a href="../models/{recipe["page"]}.html">{html.escape(recipe["title"])}</a>'
        cells = [
            f"{plan['context']:,}",
            str(plan["sequences"]),
            plan["fit"],
            speed,
            behind,
            str(grave or "none"),
        ]
        rows.append(
            f'<tr><th scope="row">{name}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in (
            "Recipe",
            "Context, tokens",
            "Requests at once",
            "On a Spark",
            "Decode of one request, tok/s",
            "Tokens of context",
            "Warnings",
        )
    )
    return (
        '<div class="sb-scroll" id="sb-chooser-table"><table class="table sb-table"><caption>With'
        " each recipe's own settings. Fit and speed are estimates; a longer context decodes"
        " slower.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
