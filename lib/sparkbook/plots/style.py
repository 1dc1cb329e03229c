"""The book's style of picture: what every chart starts from, and the object that carries it to the
page.

    @book_style()
    def chart() -> Chart:
        figure, axis = axes(2.4)
        ...
        return Chart(figure, "Bar chart: ...")

How a figure looks is in `book.mplstyle` and nowhere else; a function that draws gives colours
of `COLOURS` and leaves the rest to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import io
import re
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

STYLE = Path(__file__).with_name("book.mplstyle")

_RC = matplotlib.rc_params_from_file(STYLE, use_default_template=False)
COLOURS: tuple[str, ...] = tuple(_RC["axes.prop_cycle"].by_key()["color"])
"""Blue, orange, green, purple, grey, red: readable as lines and as text on a page, in light and in
dark, and told apart by readers who do not see all colours (`tests/plots/test_style.py` measures all
three).
"""
INK, GRID, PAPER = (_RC[name] for name in ("text.color", "grid.color", "figure.facecolor"))
"""Colours of text, of lines behind the data, and of the page."""

DARK = {
    PAPER: "#121212",  # the background of the site's theme
    INK: "#ced6dd",  # its text
    GRID: "#3a424d",
    **dict(
        zip(
            COLOURS, ("#4290fc", "#f0a040", "#5fd09a", "#c79be8", "#b0bac4", "#ff6b66"), strict=True
        )
    ),
}
"""Each colour's counterpart where the page is dark."""

_ALONE = (
    threading.RLock()
)  # matplotlib's settings are those of the whole process, and a live view draws in a thread


@contextlib.contextmanager
def book_style() -> Iterator[None]:
    """matplotlib's defaults and the book's style over them, whatever the reader has set; a
    decorator of what draws, too.
    """
    with _ALONE, matplotlib.style.context(["default", STYLE]):
        yield


class Chart:
    """A figure and what it shows, in words."""

    def __init__(self, figure: Figure, alt: str) -> None:
        """`alt` is read to those who do not see the figure: say what is compared, and where the
        numbers stand.
        """
        self.figure = figure
        self.alt = alt

    def __repr__(self) -> str:
        return f"<Chart: {self.alt}>"

    @cached_property
    def svg(self) -> str:
        """The figure as an `<svg>` element: no date, no random name; kept, for drawn again it would
        be laid out again.

        It has its own background, and a style sheet with the colours for dark. A page that is light
        or dark by a switch of its own says so by CSS's `color-scheme` on the `<img>`. What knows no
        style sheet shows it in light.
        """
        file = io.StringIO()
        with book_style():
            self.figure.savefig(
                file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
            )
        # Where several figures stand in one document, none may have the names of another's clip
        # paths and hatches.
        key = f"c{hashlib.sha256(self.alt.encode()).hexdigest()[:6]}_"
        _, start, drawn = _short(file.getvalue(), key).partition("<svg ")
        drawn = drawn.replace("*{stroke-linejoin: round; stroke-linecap: butt}", _SHEET, 1)
        return (
            f'{start}class="sparkbook-chart" role="img" aria-label="{html.escape(self.alt)}"'
            f" {drawn}"
        )

    def _repr_svg_(self) -> tuple[str, dict[str, Any]]:
        return self.svg, {"alt": self.alt}


def _short(drawn: str, key: str) -> str:
    """Return the same picture in two thirds of the bytes: an element a line, hundredths of a point,
    short names that begin with `key`.

    Two processors may differ in the last digit of a place. What is rounded has a little added, so
    that no place that layouts like (an eighth, a half) lies where rounding goes either way; names,
    which matplotlib makes as hashes of places, are numbered.
    """
    drawn = re.sub(r'\n(?=[A-Za-z"])', "", drawn)  # a path's lines
    drawn = re.sub(r"\n +", "\n", drawn).replace("DejaVuSans", "dv")
    drawn = re.sub(
        r'<g id="[\w.]+">', "<g>", drawn
    )  # nothing refers to these, and other figures have them too
    # A mark's look stands where it is used as well; there the style sheet reaches it.
    drawn = re.sub(r'(<path id="m\w+" d="[^"]*") style="[^"]*"', r"\1", drawn)
    names: dict[str, str] = {}
    hashed = r"\b(?:[hmp]|C[0-9a-f]+_[0-9a-f]+_)[0-9a-f]{10}\b"
    drawn = re.sub(hashed, lambda found: names.setdefault(found[0], f"{key}{len(names)}"), drawn)
    drawn = re.sub(
        r'(?<= )(?:d|x|y|width|height)="[^"]*"|translate\([^)]*\)',
        lambda found: re.sub(
            r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]) + 0.0003:.2f}", found[0]
        ),
        drawn,
    )
    return re.sub(r'transform="translate\((\S+) 0\)"/>', r'x="\1"/>', drawn)


def _sheet() -> str:
    """Return the style sheet inside each figure. matplotlib writes colours into the elements; a
    rule that is `!important` wins over them.
    """
    rules = []
    for light, dark in DARK.items():
        for what in ("fill", "stroke"):
            # Hatches have their ground as an attribute, all others a style.
            found = (
                f'.sparkbook-chart [style*="{what}: {light}"], .sparkbook-chart [{what}="{light}"]'
            )
            rules.append(f"{found} {{{what}: {dark} !important}}")
    general = ".sparkbook-chart * {stroke-linejoin: round; stroke-linecap: butt}"
    return "\n".join([general, "@media screen and (prefers-color-scheme: dark) {", *rules, "}"])


_SHEET = _sheet()


def axes(height_in: float) -> tuple[Figure, Axes]:
    """Return an empty chart, `height_in` inches high."""
    figure, (axis,) = panels(height_in, 1, 1)
    return figure, axis


def whole_ticks(axis: Axes) -> None:
    """Put the ticks of the x axis on whole numbers only."""
    axis.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def panels(height_in: float, rows: int, columns: int, **how: Any) -> tuple[Figure, list[Axes]]:
    """Empty charts in rows and columns, row by row, `height_in` inches high together; `how` as for
    `Figure.subplots`.
    """
    figure = Figure(figsize=(matplotlib.rcParams["figure.figsize"][0], height_in))
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)
