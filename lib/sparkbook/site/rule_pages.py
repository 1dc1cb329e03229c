"""The pages of the rules: one a family, in which every rule, log signature and check has its own
section and address.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkbook import lint, lock, recipes, releases, weights
from sparkbook.bench import gate
from sparkbook.bench.advise import ADV
from sparkbook.cluster.fabric_checks import FAB
from sparkbook.formats import conversion
from sparkbook.logs.doctor import DIAGNOSED
from sparkbook.logs.signatures import signatures
from sparkbook.metrics.diagnose import MET
from sparkbook.site import badges, plan_sections
from sparkbook.site import rule_sections as sections
from sparkbook.site.host_sections import HOST
from sparkbook.site.serve_sections import DOCK
from sparkbook.site.variants import triggered_rules
from sparkbook.util.markup import lower_start

if TYPE_CHECKING:
    from sparkbook.site.flags import Flag

CODE_FAMILIES = (HOST, DOCK, DIAGNOSED, MET, ADV, FAB)
"""Families of findings that are made in code (see `sparkbook.rules`), in the order of the site."""

CODE_TABLES: dict[str, tuple[dict[str, Any], str, str, Callable[[Any], str]]] = {
    "conv": (conversion.CODES, "conversions", conversion.INTRO, conversion.page),
    "hub": (weights.RULES, "weights", weights.INTRO, sections.hub_rule),
    "plan": (plan_sections.SECTIONS, "will it fit", plan_sections.INTRO, plan_sections.page),
    "lock": (lock.RULES, "the stack lock", lock.INTRO, sections.lock_rule),
    "bench": (gate.RULES, "invalid measurements", gate.INTRO, sections.bench_rule),
}
"""Families of rules in a table: name of the page, the rules, the page's title and introduction, and
what makes the section of one rule.
"""

JUDGED, TESTED = "judged in this build", "checked by a test"
"""Who saw to a page's examples."""

LOG_FAMILIES = {
    "1": "memory",
    "2": "architecture, tool chain and libraries",
    "3": "options, models and downloads",
    "4": "container engine and host",
    "5": "several processes, several nodes, hangs",
    "6": "messages of a running engine, and what only looks bad",
}
"""Hundreds of the log signatures' codes."""


def rule_pages(
    flags: Mapping[str, Flag],
    models: Mapping[str, str],
    chapters: Iterable[tuple[str, str, str]] = (),
) -> Iterator[tuple[str, str]]:
    """Yield name (without ending) and Markdown of each page, in the order of the table of contents.

    Args:
        flags: the flags that have a page; a rule's section names those that it watches, a
            signature's those that it names.
        models: id and page of each recipe; a rule's section names those that trigger it.
        chapters: address without ending, title and text of each chapter; a page names those that
            name its command or one of its codes.
    """
    chapters = list(chapters)
    yield from _lint_pages(flags, models, chapters)
    yield from _signature_pages(flags, chapters)
    for family in CODE_FAMILIES:
        mine = [(check.code, family.page(check)) for check in family.checks.values()]
        named = f"{family.prefix}{'xx' if family.prefix[-1].isdigit() else ''}"
        title = f"{named}: {lower_start(family.title)}"
        yield family.prefix.lower(), _page(chapters, title, family.intro, mine, JUDGED)
    for name, (rules, title, intro, section) in CODE_TABLES.items():
        mine = [(rule.code, section(rule)) for rule in rules.values()]
        how = TESTED if name == "hub" else JUDGED
        yield name, _page(chapters, f"{name.upper()}: {title}", intro, mine, how)


def _lint_pages(
    flags: Mapping[str, Flag],
    models: Mapping[str, str],
    chapters: Sequence[tuple[str, str, str]],
) -> Iterator[tuple[str, str]]:
    """Yield the pages of the linter's rules."""
    triggering, known = _triggering(models), releases.known()
    intro = (
        "What `sparkbook lint` looks for. The linter judged each example when this page was built;"
        " its findings are shown."
    )
    for family, title in lint.FAMILIES.items():
        mine, recipes_hit = [], set[str]()
        for rule in lint.RULES.values():
            if rule.family == family:
                links = triggering.get(rule.code, [])
                recipes_hit.update(links)
                text = sections.lint_rule(rule) + _flags_of(rule.code, flags) + _recipes_of(links)
                mine.append((rule.code, text))
        facts = [
            ("vLLM", f"{known[0]} to {known[-1]}"),
            ("recipes with findings", str(len(recipes_hit) or "none")),
        ]
        name = f"{family}: {lower_start(title)}"
        yield family.lower(), _page(chapters, name, intro, mine, JUDGED, facts)


def _signature_pages(
    flags: Mapping[str, Flag], chapters: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the pages of the log signatures, one a hundred."""
    intro = (
        "What `sparkbook diagnose` recognizes in a log. A test checks each signature against the"
        " two examples shown."
    )
    for hundred, title in LOG_FAMILIES.items():
        mine = [
            (one.id, sections.signature(one) + _flags_of(one.id, flags))
            for one in signatures()
            if one.id.startswith(f"LOG{hundred}")
        ]
        facts = [("signatures", str(len(mine)))]
        yield (
            f"log{hundred}",
            _page(chapters, f"LOG{hundred}xx: {title}", intro, mine, TESTED, facts),
        )


def index(pages: Iterable[tuple[str, str]]) -> str:
    """The page that lists the pages of `rule_pages`, with the number of rules on each."""
    rows = []
    for name, markdown in pages:
        title = markdown.partition("\n")[0].removeprefix("# ")
        family, _, about = title.partition(": ")
        rows.append(
            f"| [{family}]({name}) | {about} | {len(re.findall(_ANCHOR, markdown, re.MULTILINE))} |"
        )
    intro = (
        "Every code that `sparkbook` reports, by its first letters. Each section says what the rule"
        " finds, why it matters and what to do, with a failing and a passing example. To find a"
        " rule, type its code or a line of your log into the search."
    )
    head = "| codes | about | how many |\n|---|---|--:|"
    return "\n\n".join(["# Rules and log signatures", intro, "\n".join([head, *rows])]) + "\n"


_ANCHOR = r"^\([a-z]+[0-9]+\)=$"


def _flags_of(code: str, flags: Mapping[str, Flag]) -> str:
    """Return the flags that a rule or a signature is about, for the end of its section."""
    about = [f"`--{flag.name}`" for flag in flags.values() if code in flag.rules + flag.signatures]
    return f"\nFlags: {', '.join(about)}.\n" if about else ""


def _triggering(models: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the recipes that trigger each rule, as links."""
    found: dict[str, list[str]] = {}
    for name, page in models.items():
        recipe = recipes.load(name)
        link = f'<a href="../models/{page}.html">{html.escape(recipe.title)}</a>'
        for code in triggered_rules(recipe):
            found.setdefault(code, []).append(link)
    return found


def _recipes_of(links: Sequence[str]) -> str:
    """Return the recipes that trigger a rule, for the end of its section."""
    if not links:
        return ""
    return f"\nRecipes that trigger this rule (current or as published): {', '.join(links)}.\n"


class Known(NamedTuple):
    """A rule, signature or check, as other pages speak of it: its name, where its section stands,
    where its knowledge comes from.
    """

    code: str
    name: str
    address: str
    source: str


def every() -> Iterator[Known]:
    """Yield every rule, signature and check, in the order of the site."""
    for rule in lint.RULES.values():
        yield Known(rule.code, rule.name, rule.address, rule.source)
    for one in signatures():
        yield Known(one.id, one.title, one.address, one.source)
    for family in CODE_FAMILIES:
        for check in family.checks.values():
            yield Known(check.code, check.name, check.address, check.source)
    for rules, *_ in CODE_TABLES.values():
        for rule in rules.values():
            yield Known(rule.code, rule.name, rule.address, rule.source or weights.SOURCE)


def _chapters(
    intro: str, rules: Iterable[tuple[str, str]], chapters: Iterable[tuple[str, str, str]]
) -> str:
    """For the end of a page's introduction: the chapters in which its command or one of its codes
    stands.
    """
    command = re.search(r"`(sparkbook \w+)", intro)
    wanted = re.compile(
        "|".join(
            [rf"\b{code}\b" for code, _ in rules] + ([rf"\b{command[1]}\b"] if command else [])
        )
    )
    found = [
        f"{{doc}}`{title} <../{place}>`" for place, title, text in chapters if wanted.search(text)
    ]
    return f"\n\nChapters that mention it: {', '.join(found)}." if found else ""


def _page(
    chapters: Iterable[tuple[str, str, str]],
    title: str,
    intro: str,
    rules: Sequence[tuple[str, str]],
    how: str,
    facts: Iterable[tuple[str, str]] = (),
) -> str:
    """A family's page. `how`: who saw to its examples; `facts`: badges of its own."""
    sections = [f"({code.lower()})=\n{_section(text)}" for code, text in rules]
    facts_shown = [("examples", f"{2 * len(rules)}, {how}"), ("built", badges.MADE), *facts]
    if found := re.findall(r"^- \*\*(error|warning|info)\*\*", "\n".join(sections), re.MULTILINE):
        facts_shown.append(("findings in them", badges.counted(found)))
    return (
        "\n\n".join(
            [
                f"# {title}",
                badges.line(facts_shown),
                intro + _chapters(intro, rules, chapters),
                *sections,
            ]
        )
        + "\n"
    )


def _section(markdown: str) -> str:
    """A rule's page as a section: its title one level deeper, its own headings as bold words; code
    blocks are left alone.
    """
    lines, fenced = [], False
    for line in markdown.strip().splitlines():
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("## "):
            line = f"**{line[3:]}**"
        elif not fenced and line.startswith("# "):
            line = f"#{line}"
        lines.append(line)
    return "\n".join(lines)
