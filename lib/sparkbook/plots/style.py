"""The book's style of picture: what every chart starts from, and the object that carries it to the page."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#3b6fb6", "#e08214", "#3f8f4f", "#8d5fa8", "#7f7f7f", "#b3423a")
"""Told apart by readers who do not see all colours: they differ in brightness as well (checked for the first four)."""

_WIDTH_IN = 7.2
_DPI = 160
INK, GRID = "#24292f", "#d0d7de"
"""Colours of text and of lines behind the data."""


class Chart:
    """A figure and what it shows, in words."""

    def __init__(self, figure: Figure, alt: str) -> None:
        """`alt` is read to those who do not see the figure: say what is compared, and where the numbers stand."""
        self.figure = figure
        self.alt = alt

    def __repr__(self) -> str:
        return f"<Chart: {self.alt}>"

    def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
        return buffer.getvalue(), {"alt": self.alt}


def axes(height_in: float) -> tuple[Figure, Axes]:
    """An empty chart in the book's style, `height_in` inches high."""
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axis = figure.add_subplot()
    _dress(axis)
    return figure, axis


def panels(height_in: float, count: int) -> tuple[Figure, list[Axes]]:
    """`count` empty charts side by side that share their vertical axis, `height_in` inches high."""
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    found = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    for axis in found:
        _dress(axis)
    return figure, found


def _dress(axis: Axes) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GRID)
    axis.tick_params(colors=INK, labelsize=9)
    axis.set_axisbelow(True)
