"""Figures in chapters: drawn from the register as links, or accounted for in another way.

In a chapter's prose a figure is a link, `[273 GB/s](../book/claims/guide.yaml#guide-bandwidth)`:
`write_figures` puts the register's words into it, and on the site it leads to the claim's row.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.register.claim_model import Claim, Strict, is_point
from sparkbook.register.lookup import every, get, registers
from sparkbook.runner import notebooks
from sparkbook.runner.project import here
from sparkbook.util import own_yaml

LINK = re.compile(
    r"\[(?P<text>[^\]\[]*)\]\(\.\./book/claims/(?P<file>[\w-]+)\.yaml#(?P<id>[\w-]+)\)"
)

_UNITS = (
    r"tok/s|tokens/s|t/s|[GTM]B/s|Gb/s|[KMGT]i?B|TFLOPS?|%|minutes?|min|seconds?|m?s|GPUs?|times|×"
)
_FIGURE = re.compile(
    r"(?<![\w.#/-])(?P<value>\d[\d,]*(?:\.\d+)?(?:(?: to | of |–|-| or"
    rf" )\d[\d,]*(?:\.\d+)?)?)(?P<space>[ -]?)(?P<unit>{_UNITS})(?![\w/])"
)
_NOT_PROSE = re.compile(r"`[^`\n]*`|\$[^$]+\$|^>.*$|^\s*\|?[\s|:-]+\|?$", re.MULTILINE)


def strays(text: str) -> Iterator[tuple[str, str]]:
    """Yield the figures with a unit in a piece of prose that say nothing of where they come from,
    each with its line.

    A figure is accounted for if it is drawn from the register, or its paragraph, list item or table
    row links to a source of its own; the register's documents are none, since what comes from them
    is drawn. Code, formulas and quotations (`>`) are no prose.
    """
    documents = tuple({claim.source.url: None for claim in every()})
    fenced = False
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*|] ?)|\n(?=\d+\. )|(?<=\n)(?=```)", text):
        marks = len(re.findall(r"^```|^:::", block, re.MULTILINE))
        if fenced or block.lstrip().startswith("```"):
            fenced ^= marks % 2 == 1
            continue
        prose = _NOT_PROSE.sub(" ", LINK.sub(" ", block))
        if any(not url.startswith(documents) for url in re.findall(r"\]\((https?:[^)\s]+)", prose)):
            continue
        for match in _FIGURE.finditer(prose):
            yield match[0], " ".join(block.split())


def typed(code: str) -> Iterator[tuple[str, str]]:
    """Yield the numbers in a cell's code that are figures of the register, typed instead of drawn,
    each with the claim.

    Only numbers with a point and three digits that say something: 64.0 is a figure; 64, 0.85 and
    1000.0 may be anything.
    """
    points = {
        one.number: claim.id
        for claim in every()
        for one in claim.figures
        if isinstance(one.value, int | float) or is_point(one.value)
    }
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a magic line: no Python
        return
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, float)
            and node.value in points
        ):
            digits = repr(node.value).replace(".", "").lstrip("0")
            if len(digits) > 2 and digits.strip("0") != "1":
                yield ast.unparse(node), points[node.value]


_CLAIM_NOTE = re.compile(r"= (?P<value>[\d_.]+)  # .*\(claim (?P<id>[\w.-]+)\)$")


class Exempt(Strict):
    """Figures of a chapter that need not be drawn, and why."""

    chapter: str
    figures: list[str]
    reason: str


def exempt(path: Path | None = None) -> list[Exempt]:
    """Return what `book/figures.yaml` lists."""
    path = path or here().root / "book" / "figures.yaml"
    return [Exempt.model_validate(entry) for entry in own_yaml.read(path)]


def unaccounted(
    name: str, notebook: dict[str, Any], exempted: Iterable[Exempt]
) -> tuple[list[str], set[str]]:
    """Return the figures of a chapter that come from nowhere, and the exemptions that it used.

    A parameter, which has to be a plain literal, names its claim in the comment:
    `= 273.0  # … (claim guide-bandwidth)`.
    """
    excused = {text for entry in exempted if entry.chapter == name for text in entry.figures}
    problems, used = [], set()
    for number, cell in enumerate(notebook["cells"]):
        found: list[tuple[str, str]] = []
        if cell["cell_type"] == "markdown":
            problems += [
                f"{name}, cell {number}: {problem}" for problem in wrong_links(cell["source"])
            ]
            found = list(strays(cell["source"]))
        elif "parameters" in cell["metadata"].get("tags", []):
            for line in cell["source"].splitlines():
                if note := _CLAIM_NOTE.search(line):
                    numbers = [
                        one.number
                        for one in get(note["id"]).figures
                        if not isinstance(one.value, str) or is_point(one.value)
                    ]
                    if float(note["value"]) not in numbers:
                        problems.append(
                            f"{name}, cell {number}: {note['value']} is not the figure of"
                            f" {note['id']}"
                        )
                else:
                    found += list(typed(line))
        else:
            found = list(typed(cell["source"]))
        for text, line in found:
            if text in excused:
                used.add(text)
            else:
                problems.append(f"{name}, cell {number}: '{text}' has no source ({line[:100]})")
    return problems, used


def write_figures(text: str) -> str:
    """Return the text with every drawn figure in the register's words.

    A link that names a figure of several: `…/dflash.yaml#dflash-code-c1`; where the claim has more
        than one figure, the text in the
    brackets has to be one of them and is left.
    """

    def one(match: re.Match[str]) -> str:
        claim = get(match["id"])
        if len(claim.figures) == 1:
            return match[0].replace(f"[{match['text']}]", f"[{claim.figure}]", 1)
        return match[0]

    return LINK.sub(one, text)


def wrong_links(text: str) -> list[str]:
    """Return drawn figures that are not in the register, or not in its words."""
    problems = []
    for match in LINK.finditer(text):
        try:
            claim = get(match["id"])
        except SparkbookError as error:
            problems.append(str(error))
            continue
        if match["file"] not in registers() or claim not in registers()[match["file"]].claims:
            problems.append(f"{claim.id} is not in {match['file']}.yaml")
        if claim.figures and match["text"] not in [str(one) for one in claim.figures]:
            problems.append(
                f"'{match['text']}' is drawn from {claim.id}, which has"
                f" {', '.join(map(str, claim.figures))}"
            )
    return problems


@functools.cache
def drawn() -> dict[str, list[str]]:
    """Return the chapters whose prose draws a figure of a claim, by the claim's id."""
    found: dict[str, list[str]] = {}
    for path in here().chapters():
        text = "\n".join(
            cell["source"]
            for cell in notebooks.read(path)["cells"]
            if cell["cell_type"] == "markdown"
        )
        for name in dict.fromkeys(match["id"] for match in LINK.finditer(text)):
            found.setdefault(name, []).append(path.stem)
    return found


def used_by(place: str) -> list[Claim]:
    """Return the claims that a chapter or a recipe's page (`models/…`) uses."""
    return [
        claim for claim in every() if place in claim.where or place in drawn().get(claim.id, ())
    ]
