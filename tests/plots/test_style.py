"""The book's style of picture: readable in light and in dark, without seeing all colours, and the
same bytes each time.
"""

import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from sparkbook.plots import cluster, style
from sparkbook.plots.style import COLOURS, DARK, GRID, INK, PAPER
from sparkbook.runner import notebooks

ROOT = Path(__file__).resolve().parents[2]
SIDES = {"light": {colour: colour for colour in DARK}, "dark": DARK}

SEEN_BY = {
    "all colours": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""Of linear sRGB, at full severity. Machado, Oliveira and Fernandes, A Physiologically-based Model
for Simulation of Color Vision Deficiency, 2009,
https://www.inf.ufrgs.br/~oliveira/pubs_files/CVD_Simulation/CVD_Simulation.html
"""


def linear(colour):
    """Linear sRGB, 0 to 1 (IEC 61966-2-1)."""
    given = np.array(matplotlib.colors.to_rgb(colour))
    return np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2's contrast ratio, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def distance(one, other, seen_by):
    """CIE 1976 difference (D65) of two colours as somebody sees them; about 2 can just be noticed
    side by side.
    """

    def lab(colour):
        seen = np.clip(np.array(SEEN_BY[seen_by]) @ linear(colour), 0, 1)
        xyz = (
            np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
            @ seen
            / [0.9505, 1.0, 1.089]
        )
        f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    return float(np.linalg.norm(lab(one) - lab(other)))


@pytest.mark.parametrize("side", SIDES)
def test_lines_and_texts_can_be_read(side):
    shown = SIDES[side]
    # A series' colour is also that of texts beside it, and of bars with a text of the page's colour
    # in them: 4.5 as for text.
    found = {colour: contrast(shown[colour], shown[PAPER]) for colour in (INK, *COLOURS)}
    assert min(found.values()) >= 4.5, found
    assert contrast(shown[INK], shown[PAPER]) >= 7
    assert 1.15 <= contrast(shown[GRID], shown[PAPER]) < 3, (
        "lines behind the data: seen, and no louder than the data"
    )


@pytest.mark.parametrize("seen_by", SEEN_BY)
@pytest.mark.parametrize("side", SIDES)
def test_colours_are_told_apart(side, seen_by):
    shown = [SIDES[side][colour] for colour in COLOURS]
    found = {pair: distance(*pair, seen_by) for pair in itertools.combinations(shown, 2)}
    assert min(found.values()) >= 15, found
    assert min(distance(*pair, seen_by) for pair in itertools.pairwise(shown[:4])) >= 20, (
        "neighbors among the first four"
    )


@pytest.mark.parametrize("side", SIDES)
def test_texts_on_the_bands_of_the_break_even_can_be_read(side):
    shown = {
        name: np.array(matplotlib.colors.to_rgb(colour)) for name, colour in SIDES[side].items()
    }
    for colour, density, words in cluster._BANDS:
        ground = density * shown[colour] + (1 - density) * shown[PAPER]
        assert contrast(shown[INK], ground) >= 4.5, words


@style.book_style()
def small():
    figure, axis = style.axes(2.0)
    axis.bar([1, 2], [1, 2], hatch="//", edgecolor=PAPER)
    axis.plot([1, 2], [2, 1], label="a line")
    axis.text(1, 1, "a <text>")
    axis.legend()
    return style.Chart(figure, 'A "small" chart & more')


def test_a_chart_is_one_svg_element_with_its_text():
    drawn = ElementTree.fromstring(small().svg)
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert (drawn.get("role"), drawn.get("aria-label")) == ("img", 'A "small" chart & more')
    assert "@media screen and (prefers-color-scheme: dark)" in small().svg
    assert small()._repr_svg_()[1] == {"alt": 'A "small" chart & more'}


@pytest.mark.slow
def test_a_chart_is_the_same_bytes_whatever_runs_beside_it():
    chart = small()
    assert chart.svg == small().svg
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 20, "axes.grid": True}):
        assert small().svg == chart.svg
        assert matplotlib.rcParams["font.size"] == 20, "a reader's own settings stay"
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_style;"
        " sys.stdout.buffer.write(test_style.small().svg.encode())"
    )
    command = [
        sys.executable,
        "-c",
        code,
        str(Path(__file__).parent),
        str(Path(style.__file__).parents[2]),
    ]
    for seed in ("1", "2"):
        other = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"},
            capture_output=True,
            check=True,
        )
        assert other.stdout.decode() == chart.svg


def test_two_charts_in_one_document_share_no_name_but_letters():
    one = small()
    other = style.Chart(one.figure, "another")
    names = [
        set(re.findall(r'<(?:clipPath|pattern) id="(\w+)"', chart.svg)) for chart in (one, other)
    ]
    assert all(names) and not names[0] & names[1]


def figures():
    """Every figure in the committed notebooks, with where it stands."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for number, cell in enumerate(notebooks.read(path)["cells"]):
            for output in cell.get("outputs", ()):
                if drawn := output.get("data", {}).get("image/svg+xml"):
                    yield (
                        f"{path.stem}, cell {number}",
                        "".join(drawn),
                        output["metadata"]["image/svg+xml"],
                    )


def test_every_figure_of_the_book_is_small_described_and_knows_both_sides():
    found = list(figures())
    assert len(found) >= 20
    for place, drawn, about in found:
        assert len(drawn) < 100_000, f"{place}: {len(drawn)} bytes; thin the data out"
        root = ElementTree.fromstring(drawn)
        assert root.get("aria-label") == about["alt"] and len(about["alt"]) > 20, place
        assert not list(root.iter("{http://www.w3.org/2000/svg}image")), (
            f"{place}: pixels have no dark side"
        )
        inside = drawn.partition("</style>")[2]
        used = set(re.findall(r'(?:fill|stroke)(?:: |=")(#[0-9a-f]{6})', inside))
        assert used <= set(DARK), f"{place}: colours without a dark side: {used - set(DARK)}"
        for group in root.iter("{http://www.w3.org/2000/svg}g"):
            if any("dv-" in child.get("{http://www.w3.org/1999/xlink}href", "") for child in group):
                assert "fill: #" in group.get("style", ""), f"{place}: a text in plain black"
