"""Coverage: every section, model, image, table row, option, variable and fault of the five source
documents has a home in this book, or a reason; every figure and every setting has a claim in the
register, or a reason.

`book/outline.yaml` lists what there is, made by `tools/extract_outline.py`; `book/coverage.yaml`
says where each has its home. Names (of models, images, options, variables) have to stand on the
page that is called their home. A figure or a setting needs no entry there if a claim of the same
document and section has it: `claims_with` looks it up.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, model_validator

from sparkbook.util import own_yaml

if TYPE_CHECKING:
    from sparkbook.register.claims import Figure
    from sparkbook.runner.project import Project

FILE = "book/coverage.yaml"
OUTLINE = "book/outline.yaml"
TITLES = {
    "guide": "vLLM on DGX Spark (F. Vlaicu)",
    "dflash": "AEON-7/vllm-dflash: README",
    "gemma4": "davistroy/spark: notes on Gemma 4",
    "nvfp4": "Avarok dgx-vllm: README",
    "thread": "NVIDIA forum: state of FP4 and NVFP4 support",
}
KINDS = {
    "section": "sections",
    "model": "models",
    "image": "images",
    "row": "table rows",
    "option": "options",
    "variable": "environment variables",
    "fault": "faults",
    "figure": "figures",
    "setting": "settings",
}
NAMED = ("model", "image", "option", "variable")
"""Kinds whose name has to stand on the page, as a word of its own in what a reader sees."""
CLAIMED = ("figure", "setting")
"""Kinds whose home is a claim."""


class Entry(BaseModel):
    """Where some items have their home.

    Attributes:
        items: patterns `DOCUMENT/KIND/…` (`*` stands for anything); the first entry that matches
            counts.
        home: page of the site, without ending, with an anchor if need be; `{name}` is the item's
            name without its dashes.
        reason: why there is none. Beside a home: what holds as long as that page is not part of the
            book.
    """

    model_config = ConfigDict(extra="forbid")

    items: list[str]
    home: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Entry:
        if not self.home and not self.reason:
            raise ValueError(f"{self.items[0]}: neither a home nor a reason")
        return self


@dataclass(frozen=True)
class Item:
    """One thing of a document: `guide/option/--max-num-seqs`."""

    document: str
    kind: str
    name: str

    @property
    def key(self) -> str:
        """As `coverage.yaml` writes it."""
        return f"{self.document}/{self.kind}/{self.name}"

    def stands_in(self, text: str) -> bool:
        """Whether the name stands in a text as a word of its own."""
        return re.search(rf"(?<![\w/.-]){re.escape(self.name)}(?![\w/-])", text) is not None


def outline(root: Path) -> list[Item]:
    """Every item of the committed list."""
    listed: dict[str, list[str]] = own_yaml.read(root / OUTLINE)
    return [Item(document, *key.split("/", 1)) for document, keys in listed.items() for key in keys]


def entries(root: Path) -> list[Entry]:
    """The mapping."""
    return [Entry.model_validate(entry) for entry in own_yaml.read(root / FILE)]


def home(item: Item, mapping: list[Entry]) -> Entry | None:
    """The entry that speaks of an item, or the claim that has it; None where it has no home."""
    if item.kind in CLAIMED and (found := claims_with(item)):
        from sparkbook.register import claims

        return Entry(items=[item.key], home=f"{claims.PAGE}#{found[0]}")
    return next(
        (
            entry
            for entry in mapping
            if any(fnmatchcase(item.key, pattern) for pattern in entry.items)
        ),
        None,
    )


def claims_with(item: Item) -> list[str]:
    """Ids of the claims of the same document and section that have a figure, or name a setting."""
    section, _, text = item.name.partition("/")
    return [
        name
        for name, sections in _claimed(item.document).get((item.kind, _plain(text)), {}).items()
        if section in sections
    ]


@functools.cache
def _claimed(document: str) -> dict[tuple[str, str], dict[str, set[str]]]:
    """Of a document: kind and figure or setting, the claims that have it, each with its sections."""
    from sparkbook.register import claims

    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for claim in claims.every():
        if claims.document(claim) == document:
            sections = {_slug(part) for part in claim.section.split(",")}
            for figure in claim.every_figure:
                for form in _forms(figure):
                    found.setdefault(("figure", form), {})[claim.id] = sections
            for setting, value in claim.every_setting:
                found.setdefault(("setting", _plain(f"{setting}={value}")), {})[claim.id] = sections
    return found


def _slug(text: str) -> str:
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower()))


_SAME_UNIT = {"seconds": "s", "minutes": "min", "TFLOP/s": "TFLOP"}
_NUMBERS = re.compile(r"\d[\d,]*(?:\.\d+)*")


def _plain(text: str) -> str:
    """A figure or a setting in one spelling: `3,105.0 tok/s` and `3105 tok/s`, `0.70` and `0.7`."""

    def one(match: re.Match[str]) -> str:
        digits = match[0].replace(",", "")
        return digits if digits.count(".") > 1 else f"{float(digits):.15g}"

    value, space, unit = text.partition(" ") if " to " not in text else (*text.rpartition(" "),)
    if " to " in text and unit[:1].isdigit():
        value, space, unit = text, "", ""
    unit = _SAME_UNIT.get(unit, unit)
    return f"{_NUMBERS.sub(one, value).lstrip('~<>')}{space if unit else ''}{unit}"


def _forms(figure: Figure) -> set[str]:
    """The spellings that a document may have of a claim's figure: with its unit, bare in a table,
    and 262,144 as 262K or 256K.
    """
    shown = _plain(f"{figure.value} {figure.unit}".strip())
    forms = {shown, _plain(str(figure.value))}
    if isinstance(figure.value, int) and figure.value >= 1000:
        for step in (1000, 1024):
            forms |= {f"{figure.value // step} K", f"{round(figure.value / step)} K"}
    if not figure.unit:
        forms |= {
            f"{shown} {word}"
            for word in ("tokens", "layers", "experts", "languages", "model presets", "benchmarks")
        }
    return forms


def place(item: Item, entry: Entry) -> str:
    """The home that an entry gives an item, with the item's name filled in; empty where it gives a
    reason alone.
    """
    return (entry.home or "").replace("{name}", item.name.removeprefix("--"))


def names(project: Project) -> set[str]:
    """Every page of the book."""
    from sparkbook import recipes, rules
    from sparkbook.site import flags

    found = {f"notebooks/{path.stem}" for path in project.chapters()}
    found |= {f"models/{recipes.load(name).slug}" for name in project.recipe_ids()}
    found |= {f"flags/{flag.name}" for flag in flags.flags(project.recipe_ids()).values()}
    found |= {f"rules/{prefix.lower()}" for prefix in rules.FAMILIES}
    found |= {f"generated/{name}" for name in ("claims", "changes", "coverage", "sources")}
    return found | {
        path.relative_to(project.root).with_suffix("").as_posix()
        for path in (project.root / "book").rglob("*.md")
    }


@functools.cache
def texts(project: Project) -> dict[str, str]:
    """Every page of the book by name, with what a reader sees on it: chapters as committed,
    recipes, flags, the register, prose.
    """
    from sparkbook import recipes
    from sparkbook.formats import FORMATS
    from sparkbook.register import claims
    from sparkbook.runner import notebooks
    from sparkbook.site import flags

    # Working out a rule's page runs its examples; no name has its home there, nor on the generated
    # pages but one.
    found = dict.fromkeys(sorted(names(project)), "")
    for path in project.chapters():
        cells = notebooks.read(path)["cells"]
        found[f"notebooks/{path.stem}"] = "\n".join(
            piece for cell in cells for piece in (cell["source"], *_shown(cell.get("outputs", ())))
        )
    for name in project.recipe_ids():
        recipe = recipes.load(name)
        found[f"models/{recipe.slug}"] = recipe.model_dump_json() + FORMATS[
            "docker" if recipe.image else "shell"
        ].write(recipe.launch)
    for flag in flags.flags(project.recipe_ids()).values():
        found[f"flags/{flag.name}"] = flags.page(flag, ())
    found["generated/claims"] = html.unescape(claims.register_page())
    for path in sorted((project.root / "book").rglob("*.md")):
        found[path.relative_to(project.root).with_suffix("").as_posix()] = path.read_text("utf-8")
    return found


def _shown(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What a reader sees of a cell's outputs, as text."""
    for output in outputs:
        data = output.get("data", {})
        pieces = [
            output.get("text", ""),
            *(data.get(kind, "") for kind in ("text/html", "text/markdown", "text/plain")),
        ]
        for piece in pieces:
            yield html.unescape(re.sub(r"<[^>]+>", " ", "".join(piece)))


def problems(project: Project) -> Iterator[str]:
    """What is wrong: an item without a home, a home that is not there or does not hold the name, an
    entry that nothing needs.
    """
    from sparkbook.register import claims

    mapping, pages, used = entries(project.root), texts(project), set()
    for item in outline(project.root):
        entry = home(item, mapping)
        if entry is None:
            yield f"{item.key} has no home in this book"
            continue
        used.add(id(entry))
        page, _, anchor = place(item, entry).partition("#")
        if page in pages:
            if item.kind in NAMED and not item.stands_in(pages[page]):
                yield f"{item.key}: the name does not stand on {page}"
            if page == claims.PAGE and anchor:
                claims.get(anchor)
        elif not entry.reason:
            yield f"{item.key}: there is no page {page}"
    yield from (
        f"the entry of {entry.items[0]} is needed by nothing"
        for entry in mapping
        if id(entry) not in used
    )


def page(project: Project) -> str:
    """The table on the site, with a count that is worked out."""
    mapping, items = entries(project.root), outline(project.root)
    pages = names(project)
    placed = {
        item: (entry, place(item, entry).partition("#")[0] in pages)
        for item in items
        if (entry := home(item, mapping))
    }
    homes = sum(1 for _, there in placed.values() if there)
    lines = [
        "# Coverage",
        "",
        (
            "What the five documents hold that this book starts from, and where it went:"
            f" {len(items)} items, {homes} with a home, {len(placed) - homes} named with the"
            f" reason, {len(items) - len(placed)} lost. Options, variables, models and images have"
            " to stand by name on the page that is called their home; a test looks. Figures and"
            " settings have their home in the [claims register](claims), where a claim of the same"
            " document and section has to have them; the table below lists only those that no"
            " claim has."
        ),
        "",
        "| document | " + " | ".join(KINDS.values()) + " |",
        "|---" * (len(KINDS) + 1) + "|",
    ]
    for document, title in TITLES.items():
        counted = []
        for kind in KINDS:
            mine = [item for item in items if (item.document, item.kind) == (document, kind)]
            there = sum(1 for item in mine if item in placed and placed[item][1])
            counted.append(f"{there} of {len(mine)}" if mine else "–")
        lines.append(f"| {title} | {' | '.join(counted)} |")
    lines += [
        "",
        "```{raw} html",
        (
            '<div class="sb-scroll"><table class="table sb-table sb-record" data-example="guide'
            ' option"><thead><tr>'
        ),
    ]
    lines += [
        "".join(f'<th scope="col">{head}</th>' for head in ("Document", "Kind", "Item", "Home"))
        + "</tr></thead><tbody>"
    ]
    for item in items:
        if item in placed and not (item.kind in CLAIMED and placed[item][1]):
            lines.append(_row(item, *placed[item]))
    return "\n".join([*lines, "</tbody></table></div>", "```", ""])


def _row(item: Item, entry: Entry, there: bool) -> str:
    page, hash_, anchor = place(item, entry).partition("#")
    where: Any = (
        f'<a href="../{page}.html{hash_}{anchor}">{page}{hash_}{anchor}</a>'
        if there
        else html.escape(entry.reason or "")
    )
    return f"<tr><td>{item.document}</td><td>{item.kind}</td><td>{html.escape(item.name)}</td><td>{where}</td></tr>"
