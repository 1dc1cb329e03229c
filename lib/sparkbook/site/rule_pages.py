"""The pages of the rules: one a family, on which every rule has its own section and address."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sparkbook import recipes, rules
from sparkbook.findings import Finding
from sparkbook.lint import proofs
from sparkbook.lint.family import LintRule
from sparkbook.rules import Family, Rule, plain, sentence
from sparkbook.site import badges
from sparkbook.site.markdown import marked
from sparkbook.site.variants import triggered_rules
from sparkbook.util.markup import fenced

if TYPE_CHECKING:
    from sparkbook.site.flags import Flag

_ANCHOR = r"^\([a-z]+[0-9]+\)=$"


def rule_pages(
    flags: Mapping[str, Flag],
    models: Mapping[str, str],
    chapters: Iterable[tuple[str, str, str]] = (),
) -> Iterator[tuple[str, str]]:
    """Yield name (without ending) and Markdown of each page, in the order of the site.

    Args:
        flags: the flags that have a page; a rule's section names those that it is about.
        models: id and page of each recipe; a rule's section names those that trigger it.
        chapters: address without ending, title and text of each chapter; a page names those that
            name its command or one of its codes.
    """
    triggers = _triggers(models)
    chapters = list(chapters)
    for family in rules.families():
        sections = [
            (code, section(family, rule) + _flags(code, flags) + _recipes(triggers.get(code, ())))
            for code, rule in family.rules.items()
        ]
        recipes = {recipe for code, _ in sections for recipe in triggers.get(code, ())}
        yield family.page, _page(family, sections, chapters, len(recipes))


def index(pages: Iterable[tuple[str, str]]) -> str:
    """Return the page that lists the pages of `rule_pages`, with the number of rules on each."""
    rows = []
    for name, markdown in pages:
        title = markdown.partition("\n")[0].removeprefix("# ")
        family, _, about = title.partition(": ")
        count = len(re.findall(_ANCHOR, markdown, re.MULTILINE))
        rows.append(f"| [{family}]({name}) | {about} | {count} |")
    intro = (
        "Every code that `sparkbook` may answer with, by its first letters: what the rule catches,"
        " why, what to do, an example that fails and one that passes. To go straight to a rule,"
        " type its code into the search; a line of a log works as well."
    )
    head = "| codes | about | rules |\n|---|---|--:|"
    return "\n\n".join(["# Rules and log signatures", intro, "\n".join([head, *rows])]) + "\n"


def section(family: Family, rule: Rule) -> str:
    """Return the section of one rule in Markdown: what it catches and why, both examples with what
    the family finds in them now, the source, the kind, and the pattern if it has one.
    """
    parts = [
        f"## {rule.code}: {rule.heading}",
        f"*{' · '.join([family.title, *rule.about])}*",
        sentence(plain(rule.text)),
        *([rule.table] if rule.table else []),
    ]
    for title, which in (("Fails", "fails"), ("Passes", "passes")):
        example = rule.example("fails" if which == "fails" else "passes")
        parts += [f"**{title}**", family.show(example)]
        if family.judged:
            findings = [one for one in family.examine(example) if one.rule == rule.code]
            parts += ["\n".join(map(_line, findings))] if findings else []
        elif which == "fails" and rule.fix:
            parts.append(f"- **{rule.severity}**: {marked(rule.fix)}")
    if isinstance(rule, LintRule) and (text := proofs.sentence(proofs.table(), rule)):
        parts += ["**What vLLM makes of the failing example**", marked(text)]
    source = rule.source
    parts += ["**Source**", f"<{source}>" if re.fullmatch(r"http\S+", source) else source]
    parts += [f"Kind: `{rule.kind}`."] if rule.kind else []
    if rule.pattern:
        parts.append(f":::{{dropdown}} The pattern\n{fenced(chr(10).join(rule.patterns))}\n:::")
    return "\n\n".join(parts) + "\n"


def _line(finding: Finding) -> str:
    fix = f" Fix: {marked(finding.fix)}" if finding.fix else ""
    return f"- **{finding.severity}**: {marked(finding.message)}{fix}"


def _flags(code: str, flags: Mapping[str, Flag]) -> str:
    """Return the flags that a rule is about, for the end of its section."""
    about = [f"`--{flag.name}`" for flag in flags.values() if code in flag.rules + flag.signatures]
    return f"\nFlags: {', '.join(about)}.\n" if about else ""


def _recipes(links: Sequence[str]) -> str:
    if not links:
        return ""
    return f"\nRecipes that trigger this rule (current or as published): {', '.join(links)}.\n"


def _triggers(models: Mapping[str, str]) -> dict[str, list[str]]:
    """Return links to the recipes that trigger a rule, by the rule's code."""

    links: dict[str, list[str]] = {}
    for name, page in models.items():
        recipe = recipes.load(name)
        link = f'<a href="../models/{page}.html">{html.escape(recipe.title)}</a>'
        for code in triggered_rules(recipe):
            links.setdefault(code, []).append(link)
    return links


def _chapters(family: Family, chapters: Iterable[tuple[str, str, str]]) -> str:
    """Return the end of a page's introduction: the chapters that name its command or one of its
    codes.
    """
    command = re.search(r"`(sparkbook \w+)", family.intro)
    names = [*family.rules, *([command[1]] if command else [])]
    wanted = re.compile("|".join(rf"\b{name}\b" for name in names))
    links = [
        f"{{doc}}`{title} <../{place}>`" for place, title, text in chapters if wanted.search(text)
    ]
    return f"\n\nChapters that mention it: {', '.join(links)}." if links else ""


def _page(
    family: Family,
    sections: Sequence[tuple[str, str]],
    chapters: Iterable[tuple[str, str, str]],
    recipes: int,
) -> str:
    text = "\n".join(f"({code.lower()})=\n{markdown}" for code, markdown in sections)
    judged = "judged in this build" if family.judged else "reproduced by a test"
    facts = [("figures", f"{2 * len(sections)} examples, {judged}"), ("built", badges.MADE)]
    facts += [("recipes that trigger them", str(recipes))] if recipes else []
    severities = re.findall(r"^- \*\*(error|warning|info)\*\*", text, re.MULTILINE)
    facts += [("findings in them", badges.counted(severities))] if severities else []
    codes = f"{family.prefix}{'xx' if family.prefix[-1].isdigit() else ''}"
    intro = family.intro + _chapters(family, chapters)
    return f"# {codes}: {family.title}\n\n{badges.line(facts)}\n\n{intro}\n\n{text}"
