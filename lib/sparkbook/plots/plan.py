"""Pictures of a plan: where the memory goes, how far decode is from its ceiling, and what context
costs. In the book's style.

The functions take plain values, so that a plan, a log or a hand-made example can be drawn alike.
Estimates are drawn with their interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

from sparkbook.host import spark
from sparkbook.plan import request
from sparkbook.plan.decode import SPARK, Speed, speed
from sparkbook.plan.speeds import all_figures
from sparkbook.plots import style
from sparkbook.plots.style import COLOURS, INK, PAPER, Chart, book_style
from sparkbook.recipes import Recipe
from sparkbook.units import GB, GIB

if TYPE_CHECKING:
    from sparkbook.plan.memory import MemoryPlan

BLUE, ORANGE, GREEN, PURPLE, GREY, RED = COLOURS
_HATCHES = ("", "//", "", "\\\\", "", "xx", "..")
"""In addition to color, so that neighbors can be distinguished without it."""


@dataclass(frozen=True)
class Part:
    """A piece of a memory bar, in GiB: what is likely, and the bounds where it is not known
    exactly.
    """

    name: str
    gib: float
    low: float | None = None
    high: float | None = None


@book_style()
def memory_bar(
    bars: Mapping[str, Sequence[Part]], total_gib: float, marks: Mapping[str, float] | None = None
) -> Chart:
    """Draw where memory goes: one stacked bar a row, against the machine's total.

    Args:
        bars: for each row its parts, from the left; the row's name. Several rows: engines side by
            side, or one engine in several settings.
        total_gib: what the machine shows as its total; what is beyond it does not fit and is
            crossed out in red.
        marks: further limits, such as what is available or what a fraction asks for, in GiB.
    """
    figure, axis = style.axes(1.35 + 0.62 * len(bars))
    names = list(dict.fromkeys(part.name for parts in bars.values() for part in parts))
    looks = {
        name: (COLOURS[i % len(COLOURS)], _HATCHES[i % len(_HATCHES)])
        for i, name in enumerate(names)
    }
    for row, parts in enumerate(bars.values()):
        left = 0.0
        for part in parts:
            colour, hatch = looks[part.name]
            axis.barh(
                row,
                part.gib,
                left=left,
                height=0.6,
                color=colour,
                hatch=hatch,
                edgecolor=PAPER,
                linewidth=0.6,
            )
            if part.gib >= 0.055 * total_gib:
                box = {"boxstyle": "round,pad=0.15", "facecolor": colour, "edgecolor": "none"}
                axis.text(
                    left + part.gib / 2,
                    row,
                    f"{part.gib:.1f}",
                    ha="center",
                    va="center",
                    color=PAPER,
                    bbox=box,
                )
            left += part.gib
        low = left - sum(part.gib - part.low for part in parts if part.low is not None)
        high = left + sum(part.high - part.gib for part in parts if part.high is not None)
        if high > low:
            axis.plot([low, high], [row - 0.38] * 2, "-", marker="|", color=INK, markersize=6)
        if left > total_gib:
            axis.barh(
                row,
                left - total_gib,
                left=total_gib,
                height=0.6,
                color="none",
                edgecolor=RED,
                hatch="xxx",
                linewidth=1.2,
            )
        axis.text(max(left, high) + total_gib * 0.008, row, f"{left:.1f}", va="center")
    axis.axvline(total_gib, color=INK)
    axis.annotate(
        f"total {total_gib:.1f}",
        (total_gib, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
    )
    for name, gib in (marks or {}).items():
        axis.axvline(gib, color=RED, linestyle="--")
        axis.annotate(
            f"{name} {gib:.1f}",
            (gib, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 13),
            textcoords="offset points",
            color=RED,
            ha="right",
            va="bottom",
        )
    axis.set_yticks(range(len(bars)), list(bars))
    axis.invert_yaxis()
    longest = max((sum(part.gib for part in parts) for parts in bars.values()), default=0.0)
    axis.set_xlim(0, max(total_gib, longest) * 1.08)
    axis.set_xlabel("GiB")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=PAPER, label=name)
        for name, (colour, hatch) in looks.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(names)))
    summary = "; ".join(
        f"{name}: "
        + ", ".join(f"{part.name} {part.gib:.1f}" for part in parts)
        + f", together {sum(part.gib for part in parts):.1f}"
        for name, parts in bars.items()
    )
    return Chart(
        figure, f"Stacked bars of memory in GiB against a total of {total_gib:.1f}: {summary}."
    )


def plan_bar(plans: Mapping[str, MemoryPlan]) -> Chart:
    """Return the memory of plans, one a row: what is only known in bounds at its middle, for the
    engine's share as a whole is exact.
    """
    bars = {
        name: [Part(part, size.middle / GIB) for part, size in found.parts]
        for name, found in plans.items()
    }
    return memory_bar(bars, max(found.host.total for found in plans.values()) / GIB)


@dataclass(frozen=True)
class Dot:
    """A speed on the roofline: gigabytes (10^9 bytes) that one step reads, and steps a second."""

    label: str
    gigabytes: float
    steps_s: float
    kind: Literal["measured", "estimate"] = "measured"
    low: float | None = None
    high: float | None = None


@book_style()
def roofline(dots: Sequence[Dot], title: str | None = None) -> Chart:
    """Draw steps a second over the bytes that a step reads, under the lines of memory bandwidth;
    both logarithmic.

    Published figures are dots. Estimates are diamonds with their interval. One step is one token
    for each request, or a few with a draft.
    """
    figure, axis = style.axes(4.2)
    axis.grid()
    sizes = [dot.gigabytes for dot in dots]
    ends = [min(sizes) * 0.45, max(sizes) * 1.45]
    for gb_s, look, name in (
        (spark.BANDWIDTH_GB_S, "--", "specified"),
        (SPARK.read_gb_s, "-", "reached by a probe"),
    ):
        axis.plot(
            ends, [gb_s / end for end in ends], look, color=INK, label=f"{gb_s:g} GB/s, {name}"
        )
    groups: tuple[tuple[str, str, str, int, str], ...] = (
        ("measured", BLUE, "o", 26, "published"),
        ("estimate", ORANGE, "D", 44, "estimate, with its interval"),
    )
    for kind, colour, marker, area, name in groups:
        mine = [dot for dot in dots if dot.kind == kind]
        if not mine:
            continue
        sizes, rates = [dot.gigabytes for dot in mine], [dot.steps_s for dot in mine]
        axis.scatter(sizes, rates, s=area, c=colour, marker=marker, label=name, zorder=3)
        for dot in mine:
            if dot.low is not None and dot.high is not None:
                axis.plot(
                    [dot.gigabytes] * 2,
                    [dot.low, dot.high],
                    color=colour,
                    linewidth=2,
                    solid_capstyle="butt",
                    zorder=2,
                )
    axis.set_xscale("log")
    axis.set_yscale("log")
    _plain_ticks(axis)
    axis.set_xlim(*ends)
    axis.set_xlabel("GB read in one step (one token of each request, without a draft)")
    axis.set_ylabel("steps per second")
    if title:
        axis.set_title(title)
    axis.legend(loc="upper right")
    _label_dots(axis, dots)
    measured = [dot for dot in dots if dot.kind == "measured"]
    above = sum(dot.gigabytes * dot.steps_s > spark.BANDWIDTH_GB_S for dot in measured)
    summary = (
        f"{len(measured)} published speeds, {above} of them above the line of"
        f" {spark.BANDWIDTH_GB_S:g} GB/s"
    )
    estimates = "; ".join(
        f"{dot.label}: {dot.gigabytes:.3g} GB, {dot.steps_s:.3g} a second"
        + (f" ({dot.low:.3g} to {dot.high:.3g})" if dot.low else "")
        for dot in dots
        if dot.kind == "estimate"
    )
    return Chart(
        figure,
        "Roofline: steps per second over GB read in a step;"
        f" {summary}{'; estimates: ' + estimates if estimates else ''}.",
    )


def recipe_bar(recipe: Recipe) -> Chart | None:
    """Return the memory of a recipe's launch line on a Spark; None where its weights are not known,
    or it is made for the book's own engine.
    """
    from sparkbook import plan

    if recipe.family == "embedded":
        return None
    found = plan.of(recipe.id)
    return plan_bar({"this recipe": found}) if found.weights.known else None


def recipe_roofline(recipe: Recipe) -> Chart | None:
    """Return a recipe's estimate without a draft on the roofline, among the published figures
    without one; None where its shape is not known.
    """
    known = request.served(recipe)
    if known is None:
        return None
    dots = [Dot("", f.gigabytes, f.value) for f in all_figures() if f.plain]
    likely = known.reads[1]
    plain = speed(known.reads)
    gigabytes = (likely.weights(1) + likely.kv(plain.context) + 2 * likely.state) / GB
    return roofline(
        [
            *dots,
            Dot(
                f"{recipe.id}, without a draft",
                gigabytes,
                plain.tok_s,
                "estimate",
                plain.low,
                plain.high,
            ),
        ]
    )


def _label_dots(axis: Axes, dots: Sequence[Dot]) -> None:
    """A name beside each group of dots: the first dot of a label carries it, on the left, away from
    the lines of bandwidth.

    A name that would lie on a dot, a line or another name moves down and to the left, and a thin
    line leads to it.
    """
    named = {
        dot.label: dot
        for dot in sorted(dots, key=lambda dot: (dot.kind, dot.steps_s, -dot.gigabytes))
        if dot.label
    }
    taken: list[Bbox] = []
    pixels = axis.figure.dpi / 72
    if any(dot.kind == "measured" for dot in named.values()):
        axis.figure.draw_without_rendering()  # type: ignore[union-attr]
        low, high = axis.get_xlim()
        sizes = [low * (high / low) ** (step / 200) for step in range(201)]
        lines = [
            (size, gb_s / size)
            for gb_s in (spark.BANDWIDTH_GB_S, SPARK.read_gb_s)
            for size in sizes
        ]
        marks = axis.transData.transform([(dot.gigabytes, dot.steps_s) for dot in dots] + lines)
        taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in marks]
    for dot in sorted(
        named.values(), key=lambda dot: (dot.kind, dot.gigabytes, -dot.steps_s, dot.label)
    ):
        if dot.kind == "estimate":  # above its interval
            axis.annotate(
                dot.label,
                (dot.gigabytes, dot.high or dot.steps_s),
                xytext=(0, 4),
                textcoords="offset points",
                fontsize=7,
                ha="left",
                va="bottom",
            )
            continue
        text = axis.annotate(
            dot.label,
            (dot.gigabytes, dot.steps_s),
            xytext=_PLACES[0],
            textcoords="offset points",
            fontsize=7,
            ha="right",
            va="center",
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.4, "relpos": (1, 0.5)},
        )
        size, point = (
            Text.get_window_extent(text),
            axis.transData.transform((dot.gigabytes, dot.steps_s)),
        )
        boxes = (
            (
                (x, y),
                Bbox.from_bounds(
                    point[0] + x * pixels - size.width,
                    point[1] + y * pixels - size.height / 2,
                    size.width,
                    size.height,
                ),
            )
            for x, y in _PLACES
        )
        place, box = next(
            (found for found in boxes if not any(found[1].overlaps(other) for other in taken)),
            (_PLACES[0], size),
        )
        text.set_position(place)
        taken.append(box)


_PLACES = sorted(
    ((-6 - 6 * left, -4 * down) for left in range(16) for down in range(24)),
    key=lambda place: place[0] ** 2 + place[1] ** 2,
)
"""Where a name may stand next to its dot, in points, nearest first."""


def _plain_ticks(axis: Axes) -> None:
    for bound in (axis.xaxis, axis.yaxis):
        bound.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200, 500]))
        bound.set_minor_locator(NullLocator())
        bound.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


@book_style()
def context_tradeoff(
    contexts: Sequence[int], sequences: Sequence[float], speeds: Sequence[Speed]
) -> Chart:
    """Draw what context costs: how many sequences of that length fit, and how fast one of them
    decodes.

    Args:
        contexts: tokens, rising.
        sequences: for each, how many sequences of that length the KV cache holds; below 1: not even
            one.
        speeds: for each, the estimate for one request at that context.
    """
    figure, (upper, lower) = style.panels(4.4, 2, 1, sharex=True)
    for axis in (upper, lower):
        axis.grid()
    upper.plot(contexts, sequences, marker="o", markersize=4, color=BLUE)
    upper.axhline(1, color=RED, linestyle="--")
    upper.annotate(
        "one sequence", (contexts[0], 1), xytext=(0, 3), textcoords="offset points", color=RED
    )
    upper.set_xscale("log", base=2)
    upper.set_yscale("log")
    upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    upper.yaxis.set_minor_locator(NullLocator())
    upper.set_ylabel("sequences that fit")
    lower.fill_between(
        contexts,
        [s.low for s in speeds],
        [s.high for s in speeds],
        color=ORANGE,
        alpha=0.25,
        linewidth=0,
        label="interval",
    )
    lower.plot(
        contexts,
        [s.tok_s for s in speeds],
        marker="D",
        markersize=4,
        color=ORANGE,
        label="estimate",
    )
    lower.set_ylim(bottom=0)
    lower.set_ylabel("tok/s of one request")
    lower.set_xlabel("context, tokens")
    lower.set_xticks(contexts, [_tokens(context) for context in contexts], fontsize=8)
    lower.xaxis.set_minor_locator(NullLocator())
    lower.legend(loc="lower left")
    summary = "; ".join(
        f"{_tokens(context)}: {count:.3g} sequences, {found.tok_s:.3g} tok/s"
        for context, count, found in zip(contexts, sequences, speeds, strict=True)
    )
    return Chart(
        figure,
        "Two line charts over the context: sequences that fit, and estimated tokens a second of"
        f" one request. {summary}.",
    )


def _tokens(count: int) -> str:
    return f"{count / 1024:g}k" if count % 1024 == 0 else f"{count:,}"


def _once(names: Sequence[str]) -> list[str]:
    """Return names one below the other; of those that differ only behind their last hyphen the
    first is written out, the others from there on.
    """
    stems = [name.rpartition("-")[0] for name in names]
    return [
        name.removeprefix(stem) if stem and stem == before else name
        for name, stem, before in zip(names, stems, ["", *stems], strict=False)
    ]


@book_style()
def predicted(names: Sequence[str], measured: Sequence[float], estimates: Sequence[Speed]) -> Chart:
    """Published figures (dots) next to the estimates (diamonds with their interval), one row each;
    tokens a second, logarithmic.
    """
    figure, axis = style.axes(0.8 + 0.19 * len(names))
    axis.grid(axis="x")
    rows = range(len(names))
    axis.hlines(
        rows,
        [e.low for e in estimates],
        [e.high for e in estimates],
        color=ORANGE,
        linewidth=3,
        alpha=0.45,
    )
    axis.scatter(
        [e.tok_s for e in estimates],
        rows,
        s=20,
        c=ORANGE,
        marker="D",
        zorder=3,
        label="estimate and interval",
    )
    axis.scatter(measured, rows, s=20, c=BLUE, marker="o", zorder=4, label="published")
    axis.set_yticks(list(rows), _once(names), fontsize=7)
    axis.tick_params(axis="y", left=False)
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator([2, 5, 10, 20, 50, 100, 200, 500]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("tokens per second, all requests together")
    figure.legend(loc="outside upper right", ncols=2)
    inside = sum(estimate.holds(value) for estimate, value in zip(estimates, measured, strict=True))
    return Chart(
        figure,
        f"{len(names)} published speeds next to their estimates; {inside} lie inside the interval."
        " The table has the same figures.",
    )
