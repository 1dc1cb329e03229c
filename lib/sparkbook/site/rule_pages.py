"""The pages of the rules: one a family, in which every rule, log signature and check has its own
section and address.
"""

from __future__ import annotations

import functools
import html
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sparkbook.recipes import Recipe
    from sparkbook.site.flags import Flag

CODE_FAMILIES = (
    "sparkbook.host.pages:HOST",
    "sparkbook.serve.pages:DOCK",
    "sparkbook.logs.states:STATES",
    "sparkbook.metrics.diagnose:MET",
    "sparkbook.bench.advise:ADV",
    "sparkbook.cluster.checks:FAB",
)
"""Families of findings that are made in code, each as the module and the name in it (see
`sparkbook.rules`), in the order of the site.
"""

CODE_TABLES = {
    "conv": ("sparkbook.formats.pages:CODES", "what a conversion says"),
    "hub": ("sparkbook.weights:RULES", "weights"),
    "plan": ("sparkbook.plan.pages:SECTIONS", "will it fit"),
    "lock": ("sparkbook.lock:RULES", "the stack lock"),
    "bench": ("sparkbook.bench.gate:RULES", "measurements that are not numbers"),
}
"""Families whose codes stand in a table: name of the page, the table, the page's title. Beside a
table its module has `INTRO`, and `page`, which gives the section of one code.
"""

JUDGED, TESTED = "judged in this build", "held by a test"
"""Who saw to a page's examples."""

LOG_FAMILIES = {
    "1": "memory",
    "2": "architecture, tool chain and libraries",
    "3": "options, models and downloads",
    "4": "container engine and host",
    "5": "several processes, several nodes, hangs",
    "6": "what a running engine says, and what only looks bad",
}
"""Hundreds of the log signatures' codes."""


def code_families() -> Iterator[Any]:
    """The families of `CODE_FAMILIES`."""
    for place in CODE_FAMILIES:
        module, name = place.split(":")
        yield getattr(importlib.import_module(module), name)


def rule_pages(
    flags: Mapping[str, Flag],
    models: Mapping[str, str],
    chapters: Iterable[tuple[str, str, str]] = (),
) -> Iterator[tuple[str, str]]:
    """Name (without ending) and Markdown of each page, in the order of the table of contents.

    Args:
        flags: the flags that have a page; a rule's section names those that it watches, a
            signature's those that it speaks of.
        models: id and page of each recipe; a rule's section names those of which it complains.
        chapters: address without ending, title and text of each chapter; a page names those that
            name its command or one of its codes.
    """
    from sparkbook import lint, releases
    from sparkbook.logs.pages import page as signature_page
    from sparkbook.logs.signatures import signatures

    spoken_of, known = _spoken_of(models), releases.known()
    made = functools.partial(_page, list(chapters))
    for family, title in lint.FAMILIES.items():
        mine = [
            (r.code, lint.page(r) + _seen(r.code, flags) + _met(r.code, spoken_of))
            for r in lint.RULES.values()
            if r.family == family
        ]
        intro = (
            "What `sparkbook lint` looks for. Each example was judged when this page was built;"
            " what is shown is what the linter said."
        )
        met = {recipe for code, _ in mine for recipe in spoken_of.get(code, ())}
        facts = [
            ("vLLM", f"facts of {known[0]} to {known[-1]}"),
            ("recipes that it speaks of", str(len(met) or "none")),
        ]
        yield family.lower(), made(f"{family}: {_lower(title)}", intro, mine, JUDGED, facts)
    for hundred, title in LOG_FAMILIES.items():
        these = [
            signature for signature in signatures() if signature.id.startswith(f"LOG{hundred}")
        ]
        mine = [
            (signature.id, signature_page(signature) + _seen(signature.id, flags))
            for signature in these
        ]
        intro = (
            "What `sparkbook diagnose` recognizes in a log. A test holds each signature to the two"
            " examples shown."
        )
        facts = [("signatures", str(len(these)))]
        yield f"log{hundred}", made(f"LOG{hundred}xx: {title}", intro, mine, TESTED, facts)
    for checks in code_families():
        mine = [(check.code, checks.page(check)) for check in checks.checks.values()]
        named = f"{checks.prefix}{'xx' if checks.prefix[-1].isdigit() else ''}"
        yield (
            checks.prefix.lower(),
            made(f"{named}: {_lower(checks.title)}", checks.intro, mine, JUDGED),
        )
    for name, (module, codes, title) in code_tables().items():
        mine = [(code.code, module.page(code)) for code in codes.values()]
        yield (
            name,
            made(
                f"{name.upper()}: {title}", module.INTRO, mine, TESTED if name == "hub" else JUDGED
            ),
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
        "Every code that `sparkbook` may answer with, by its first letters: what is looked for,"
        " why, what to do, an example in which it is found and one in which it is not. To go"
        " straight to one, type its code into the search; a line of a log works as well."
    )
    head = "| codes | about | how many |\n|---|---|--:|"
    return "\n\n".join(["# Rules and log signatures", intro, "\n".join([head, *rows])]) + "\n"


_ANCHOR = r"^\([a-z]+[0-9]+\)=$"


def _seen(code: str, flags: Mapping[str, Flag]) -> str:
    """The flags that a rule or a signature is about, for the end of its section."""
    about = [f"`--{flag.name}`" for flag in flags.values() if code in flag.rules + flag.signatures]
    return f"\nFlags: {', '.join(about)}.\n" if about else ""


def speaking_of(recipe: Recipe) -> list[str]:
    """The linter's rules that say something of a recipe: as the catalogue has it, or as its source
    published it.
    """
    from sparkbook import lint
    from sparkbook.lint.variants import variant

    reports = [lint.lint(recipe), lint.lint(variant(recipe, "as-published") or recipe)]
    return list(dict.fromkeys(finding.rule for report in reports for finding in report.findings))


def _spoken_of(models: Mapping[str, str]) -> dict[str, list[str]]:
    """Rule to the recipes of which it says something, as links."""
    from sparkbook import recipes

    found: dict[str, list[str]] = {}
    for recipe, page in ((recipes.load(name), page) for name, page in models.items()):
        for code in speaking_of(recipe):
            found.setdefault(code, []).append(
                f'<a href="../models/{page}.html">{html.escape(recipe.title)}</a>'
            )
    return found


def _met(code: str, spoken_of: dict[str, list[str]]) -> str:
    met = spoken_of.get(code)
    return (
        f"\nRecipes of which it speaks, as they are or as they were published: {', '.join(met)}.\n"
        if met
        else ""
    )


class Known(NamedTuple):
    """A rule, signature or check, as other pages speak of it: its name, where its section stands,
    where its knowledge comes from.
    """

    code: str
    name: str
    address: str
    source: str


def every() -> Iterator[Known]:
    """Every rule, signature and check, in the order of the site."""
    from sparkbook import lint
    from sparkbook.logs.signatures import signatures
    from sparkbook.site.flags import signature_address

    yield from (
        Known(rule.code, rule.name, rule.address, rule.source) for rule in lint.RULES.values()
    )
    yield from (
        Known(one.id, one.title, signature_address(one.id), str(one.source)) for one in signatures()
    )
    for family in code_families():
        yield from (
            Known(check.code, check.name, check.address, check.source)
            for check in family.checks.values()
        )
    for module, codes, _ in code_tables().values():
        yield from (
            Known(code.code, code.name, code.address, code.source or module.SOURCE)
            for code in codes.values()
        )


def code_tables() -> dict[str, tuple[Any, dict[str, Any], str]]:
    """The tables of `CODE_TABLES`: name of the page to its module, codes and title."""
    found = {}
    for page, (place, title) in CODE_TABLES.items():
        module, name = place.split(":")
        loaded = importlib.import_module(module)
        found[page] = (loaded, getattr(loaded, name), title)
    return found


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
    return f"\n\nChapters that speak of it: {', '.join(found)}." if found else ""


def _page(
    chapters: Iterable[tuple[str, str, str]],
    title: str,
    intro: str,
    rules: Sequence[tuple[str, str]],
    how: str,
    facts: Iterable[tuple[str, str]] = (),
) -> str:
    """A family's page. `how`: who saw to its examples; `facts`: badges of its own."""
    from sparkbook.site import record

    sections = [f"({code.lower()})=\n{_section(text)}" for code, text in rules]
    said = [("taken on", f"{2 * len(rules)} examples, {how}"), ("built", record.MADE), *facts]
    if found := re.findall(r"^- \*\*(error|warning|info)\*\*", "\n".join(sections), re.MULTILINE):
        said.append(("findings in them", record.counted(found)))
    return (
        "\n\n".join(
            [
                f"# {title}",
                record.badge_line(said),
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


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
