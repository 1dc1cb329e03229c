"""A page for each option of `vllm serve` that a recipe uses: what it does, its life in vLLM's
releases, and everything that mentions it.

Lives, types, values and defaults come out of the releases table; uses out of the recipes' launch
lines as the linter reads them; the rest is found by looking for the option's name.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sparkbook import recipes, releases
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.lint import RULES
from sparkbook.lint.case import Case
from sparkbook.logs.signatures import signatures
from sparkbook.recipes import Recipe
from sparkbook.releases import changelog
from sparkbook.site import badges, flag_reference
from sparkbook.site.markdown import marked
from sparkbook.site.variants import triggered_rules
from sparkbook.util.markup import cell, code, without_fields


@dataclass
class Flag:
    """What is known about one option.

    Attributes:
        name: long name without dashes.
        uses: recipe and the words of its line.
        rules: codes of the linter's rules that watch it.
        signatures: codes of the log signatures that name it.
    """

    name: str
    uses: list[tuple[Recipe, str]] = field(default_factory=list)
    rules: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()

    @property
    def means(self) -> str:
        """What it does.

        Raises:
            SparkbookError: nobody has written it yet.
        """
        if self.name not in flag_reference.TEXTS:
            raise SparkbookError(
                f"a recipe uses --{self.name}, which no text explains: add a sentence to"
                " book/data/flags.yaml"
            )
        return flag_reference.TEXTS[self.name].means


def flags(ids: Iterable[str]) -> dict[str, Flag]:
    """Return every option of these recipes and of the flag reference, by name."""
    found = {name: Flag(name) for name, text in flag_reference.TEXTS.items() if text.costs}
    for recipe in map(recipes.load, ids):
        for given in Case(of_launch(recipe.launch, recipe)).args.options:
            if given.option is not None:
                flag = found.setdefault(given.option.name, Flag(given.option.name))
                flag.uses.append((recipe, given.shown))
    for name, flag in found.items():
        flag.rules = flag_reference.watching(name)
        flag.signatures = tuple(
            code for code, named in _named_by_signatures().items() if name in named
        )
    return dict(sorted(found.items()))


@functools.cache
def _named_by_signatures() -> dict[str, set[str]]:
    """Return options that each log signature names in its texts or its example."""
    return {
        s.code: set(_names("\n".join([s.title, s.text, s.fix, *s.collect, s.fails])))
        for s in signatures()
    }


def _names(text: str) -> list[str]:
    """Return the options that a text names, without the dashes, as `max-model-len`."""
    return [
        name.removeprefix("no-")
        for name in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])", text.replace("_", "-"))
    ]


def page(flag: Flag, chapters: Iterable[tuple[str, str, str]]) -> str:
    """Return the page of one option, in Markdown.

    Args:
        flag: the option.
        chapters: address below the site's root without ending, title and text of each page that may
            explain it.
    """
    parts = [f"# `--{flag.name}`", _badges(flag), flag.means]
    if costs := flag_reference.TEXTS[flag.name].costs:
        parts.append(f"**On a Spark:** {costs}.")
    parts.append(_facts(flag.name))
    if history := flag_reference.history(flag.name):
        rows = [(since, cell(marked(words))) for since, words in history]
        parts.append("## What moved\n\n" + _rows(("since", "change"), rows))
    parts.append("## In the recipes")
    if flag.uses:
        uses = [
            (_link(recipe.title, f"models/{recipe.slug}.html"), f"`{cell(words)}`")
            for recipe, words in flag.uses
        ]
        parts.append(_rows(("recipe", "in its launch line"), uses))
    else:
        parts.append("No recipe of this book uses it.")
    rules = [f"{_link(code, RULES[code].address)}: {RULES[code].name}" for code in flag.rules]
    logs = [_signature(code) for code in flag.signatures]
    explained = [
        f"{{doc}}`{title} <../{place}>`"
        for place, title, text in chapters
        if flag.name in _names(text)
    ]
    for title, items in (
        ("Rules that watch it", rules),
        ("Log signatures that name it", logs),
        ("Chapters that mention it", explained),
    ):
        if items:
            parts.append(f"## {title}\n\n" + "\n".join(f"- {item}" for item in items))
    return "\n\n".join(parts) + "\n"


def _facts(name: str) -> str:
    """Return what the releases table has of an option, as a table of HTML."""
    rows = [("Releases", releases.said(releases.presence("options", name)))]
    if lives := releases.lives("options", name):
        newest = lives[-1].until or releases.newest()
        option = releases.get(newest).option(name)
        chosen = option.default is None or isinstance(option.default, dict)
        rows += [
            (f"In vLLM {newest}", changelog.describe("options", lives[-1].value)),
            ("Default", "chosen at start" if chosen else str(option.default) or "empty"),
            ("Group of the help text", option.group or "none"),
        ]
        spellings = [*option.aliases, *([f"--no-{name}"] if option.negatable else [])]
        if spellings:
            rows.append(("Also", " ".join(f"`{spelling}`" for spelling in spellings)))
        if option.deprecated:
            rows.append(("Deprecated", option.deprecated))
    body = "".join(
        f'<tr><th scope="row">{html.escape(title)}</th><td>{code(text)}</td></tr>'
        for title, text in rows
    )
    return (
        f'<div class="sb-scroll"><table class="table sb-facts"><tbody>{body}</tbody></table></div>'
    )


def _signature(code: str) -> str:
    """Return a link to a log signature's section, with its title."""
    signature = signatures()[code]
    return f"{_link(code, signature.address)}: {html.escape(without_fields(signature.title))}"


def _rows(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown table of two columns."""
    lines = [f"| {left} | {right} |" for left, right in rows]
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *lines])


def _badges(flag: Flag) -> str:
    known = releases.known()
    recipes = len({recipe.id for recipe, _ in flag.uses})
    return badges.line(
        [
            ("facts", f"from vLLM's own releases, {known[0]} to {known[-1]}"),
            ("built", badges.MADE),
            ("recipes", str(recipes or "none")),
            ("rules", str(len(flag.rules) or "none")),
            ("log signatures", str(len(flag.signatures) or "none")),
        ]
    )


def of_recipe(recipe: Recipe, known: dict[str, Flag]) -> str:
    """Return for a recipe's page the options of its line, and the rules that the line or the
    published one triggers, by name.
    """
    mine = [
        f"`--{flag.name}`"
        for flag in known.values()
        if any(user.id == recipe.id for user, _ in flag.uses)
    ]
    lines = [("Flags of this line", mine), ("Rules that it triggers", triggered_rules(recipe))]
    return "\n\n".join(f"**{title}:** {', '.join(names)}." for title, names in lines if names)


def index(known: dict[str, Flag]) -> str:
    """Return the page that lists all of them."""
    counted = [
        (f.name, cell(f.means), len({recipe.id for recipe, _ in f.uses}), len(f.rules))
        for f in known.values()
    ]
    rows = "\n".join(
        f"| [`--{name}`]({name}) | {means} | {uses} | {rules} |"
        for name, means, uses, rules in counted
    )
    intro = (
        "Every option of `vllm serve` that a recipe of this book uses, each with a page: what it"
        " does, since and until which release, its default and its values, the recipes, the rules,"
        " the log signatures and the chapters that mention it."
    )
    return (
        f"# Flags, one by one\n\n{intro}\n\n| flag | what it does | recipes | rules"
        f" |\n|---|---|--:|--:|\n{rows}\n"
    )


def pages(
    known: dict[str, Flag], chapters: Iterable[tuple[str, str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield name (without ending) and Markdown of each page, the list of them first."""
    chapters = list(chapters)
    yield "index", index(known)
    for flag in known.values():
        yield flag.name, page(flag, chapters)


def _link(text: str, address: str) -> str:
    return f'<a href="../{address}">{html.escape(text)}</a>'
