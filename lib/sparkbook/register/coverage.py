"""Coverage: every section, model, image, table row, option, variable and fault of the five source
documents has a home in this book, or a reason; every figure and every setting has a claim in the
register, or a reason.

`book/outline.yaml` lists what there is, made by `tools/extract_outline.py`; `book/coverage.yaml`
says where each has its home. Names (of models, images, options, variables) have to be on the
page that is called their home. A figure or a setting needs no entry there if a claim of the same
document and section has it: `claims_with` looks it up.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, model_validator

from sparkbook.util import own_yaml

if TYPE_CHECKING:
    from sparkbook.register.claims import Figure

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
"""Kinds whose name has to be on the page, as a word of its own in what a reader sees."""
CLAIMED = ("figure", "setting")
"""Kinds whose home is a claim."""


class Entry(BaseModel):
    """Where some items have their home.

    Attributes:
        items: patterns `DOCUMENT/KIND/…` (`*` stands for anything); the first entry that matches
            counts.
        home: page of the site, without ending, with an anchor if need be; `{name}` is the item's
            name without its dashes.
        reason: why there is none. With a home: what holds as long as that page is not part of the
            book.
    """

    model_config = ConfigDict(extra="forbid")

    items: list[str]
    home: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Entry:
        if not self.home and not self.reason:
            raise ValueError(f"{self.items[0]}: has neither a home nor a reason")
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
        """Return whether the name occurs in a text as a word of its own."""
        return re.search(rf"(?<![\w/.-]){re.escape(self.name)}(?![\w/-])", text) is not None


def outline(root: Path) -> list[Item]:
    """Return every item of the committed list."""
    listed: dict[str, list[str]] = own_yaml.read(root / OUTLINE)
    return [Item(document, *key.split("/", 1)) for document, keys in listed.items() for key in keys]


def entries(root: Path) -> list[Entry]:
    """Return the mapping."""
    return [Entry.model_validate(entry) for entry in own_yaml.read(root / FILE)]


def home(item: Item, mapping: list[Entry]) -> Entry | None:
    """Return the entry that names an item, or the claim that has it; None where it has no home."""
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
    """Return ids of the claims of the same document and section that have a figure, or name a
    setting.
    """
    section, _, text = item.name.partition("/")
    return [
        name
        for name, sections in _claimed(item.document).get((item.kind, _plain(text)), {}).items()
        if section in sections
    ]


@functools.cache
def _claimed(document: str) -> dict[tuple[str, str], dict[str, set[str]]]:
    """Map each kind and figure or setting of a document to its claims, with their sections."""
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
    """Return a figure or a setting in one spelling: `3,105.0 tok/s` and `3105 tok/s`, `0.70` and
    `0.7`.
    """

    def one(match: re.Match[str]) -> str:
        digits = match[0].replace(",", "")
        return digits if digits.count(".") > 1 else f"{float(digits):.15g}"

    value, space, unit = text.partition(" ") if " to " not in text else (*text.rpartition(" "),)
    if " to " in text and unit[:1].isdigit():
        value, space, unit = text, "", ""
    unit = _SAME_UNIT.get(unit, unit)
    return f"{_NUMBERS.sub(one, value).lstrip('~<>')}{space if unit else ''}{unit}"


def _forms(figure: Figure) -> set[str]:
    """Return the spellings that a document may have of a claim's figure: with its unit, bare in a
    table, and 262,144 as 262K or 256K.
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
    """Return the home that an entry gives an item, with the item's name filled in; empty where it
    gives a reason alone.
    """
    return (entry.home or "").replace("{name}", item.name.removeprefix("--"))
